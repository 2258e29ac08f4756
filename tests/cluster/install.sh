#!/bin/bash
# Installs the Debian packages that the cluster tests need and this machine lacks, and says so.
set -euo pipefail

if [ "$(id -u)" -ne 0 ]; then
    echo "make test-cluster needs root, to make network namespaces: run sudo make test-cluster" >&2
    exit 2
fi
missing=()
test -x /usr/sbin/sshd || missing+=(openssh-server)
command -v ssh >/dev/null || missing+=(openssh-client)
{ command -v ip && command -v tc; } >/dev/null || missing+=(iproute2)
command -v nsenter >/dev/null || missing+=(util-linux)
test -x /usr/bin/mpiexec.hydra || missing+=(mpich)
{ test -x /usr/sbin/slurmctld && test -x /usr/sbin/slurmd && command -v sbatch; } >/dev/null || missing+=(slurm-wlm)
test -x /usr/sbin/munged || missing+=(munge)
test "${#missing[@]}" -gt 0 || exit 0
if ! command -v apt-get >/dev/null; then
    echo "install first: ${missing[*]}" >&2
    exit 2
fi
echo "installing for the cluster tests: ${missing[*]}"
apt-get update -q
# The packages would start daemons of this machine's own, where something starts services at all.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
fi
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
