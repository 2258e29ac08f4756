"""The lines with which MLSL, PSM2, MPI, ssh, Slurm and the operating system fail."""

from __future__ import annotations

from caffe_recipes.run.failures.diagnosis import Diagnosis, Signature

_SHARED_MEMORY = (
    "a page of mapped memory could not be read or written: /dev/shm of the host is full, or an LMDB shrank"
    " or its disk failed while it was read"
)
_FREE_SHARED_MEMORY = (
    "run `df -h /dev/shm` on the host and delete what killed runs left there; in a container, give it more"
    " (docker run --shm-size); then compare the LMDB with the original"
)
_SHARED_MEMORY_SOURCE = "ofiwg/libfabric#9422, pmodels/mpich#4631, intel/caffe#45"
_RANK_KILLED = (
    "a rank was killed by SIGKILL: by the kernel, because the host was out of memory, or by the launcher,"
    " because another rank had failed first"
)
_FIRST_ERROR = (
    "read the first error of any rank above; if there is none, look for `Out of memory` in dmesg of the host,"
    " and reduce the batch or the ranks per node"
)
_WRONG_CPU = "the program or one of its libraries was compiled for a CPU with more instructions than this one"
_OTHER_BUILD = "use a build for this CPU, e.g. one compiled on this kind of host (`lscpu` lists its flags)"
_CRASHED = Diagnosis(
    "crashed",
    "the program read memory that is not its own (SIGSEGV), as Caffe does for a label that is not below"
    " `num_output`, or if it was compiled for other libraries than it loads",
    "compare the largest label with `num_output`, and run `caffe-recipes lint`; the stack trace names the"
    " layer; compile again after an update of a library",
    "BVLC/caffe#2672, intel/MLSL#8, BVLC/caffe#1871",
    is_guess=True,
    is_consequence=True,
)
_NODE_FAILED = Diagnosis(
    "slurm-node",
    "a node of the job failed or lost its connection to Slurm",
    "run the same command again, without that node if it fails once more (sbatch --exclude)",
    "Slurm, src/slurmd/slurmstepd/req.c and src/api/step_launch.c; nebius/soperator#854",
    repeats=False,
)

CLUSTER_SIGNATURES = (
    Signature(
        "server_affinity[ep_idx] >= 0",
        Diagnosis(
            "mlsl-affinity",
            "MLSL does not have a core for each of its server processes: MLSL_SERVER_AFFINITY is too short,"
            " or its default does not fit this host",
            "list a core for each server of the host (`cluster.mlsl` in the recipe), or export"
            " MLSL_NUM_SERVERS=0 to run without servers",
            "intel/caffe#76, intel/caffe#79",
        ),
    ),
    Signature(
        "ep_server (",
        Diagnosis(
            "mlsl-server-missing",
            "hydra cannot start MLSL's server: MLSL_ROOT is not set on that host, or MLSL is not there",
            "source mlslvars.sh of the same MLSL on every host, or export MLSL_ROOT to all ranks; or export"
            " MLSL_NUM_SERVERS=0",
            "intel/caffe#274",
        ),
        r"ep_server \((?:No such file|Permission denied)",
    ),
    Signature(
        "CommsAlloc",
        Diagnosis(
            "mlsl-memory",
            "MLSL could not allocate its shared memory in /dev/shm",
            "make /dev/shm larger or delete what killed runs left there; with an MLSL of 2017 set"
            " MLSL_HEAP_SIZE_GB, too",
            "intel/caffe#56, intel/MLSL#10",
        ),
        r"comms_ep\.cpp:CommsAlloc:\d+: ASSERT 'ptr' FAILED",
    ),
    Signature(
        "memory for intra-node messaging",
        Diagnosis(
            "psm-shared-memory",
            "PSM could not allocate shared memory on the host that is named: /dev/shm is full, often of files"
            " that killed runs left",
            "delete your old files in /dev/shm on that host, or make it larger",
            "intel/caffe#224; opa-psm2, am_reqrep_shmem.c",
        ),
        r"(?i)(?:unable to|cannot) allocate (?:shared )?memory for intra-node messaging",
    ),
    Signature(
        "PSM could not set up shared memory segment",
        Diagnosis(
            "psm-segment",
            "a rank could not open the shared memory of another rank on its host, as after stale files in"
            " /dev/shm, or in containers that do not share it",
            "delete your old files in /dev/shm on that host, and let all ranks of a host share /dev/shm",
            "cornelisnetworks/opa-psm2#42, cornelisnetworks/opa-psm2#48",
            is_guess=True,
        ),
    ),
    Signature(
        "assign_context command failed",
        Diagnosis(
            "psm-contexts",
            "the Omni-Path adapter of the host has no free context: more ranks than it has contexts, or ranks"
            " of a killed run still hold them",
            "end old ranks on the host, start fewer ranks per node, or raise num_user_contexts of hfi1",
            "pmodels/mpich#4757, charmplusplus/charm#1966, open-mpi/ompi#1578",
        ),
        r"assign_context command failed: Device or resource busy",
    ),
    Signature(
        "hfi_userinit: mmap of ",
        Diagnosis(
            "psm-locked-memory",
            "PSM2 may not lock enough memory",
            "`ulimit -l` must be unlimited for the ranks; under Slurm, slurmd's LimitMEMLOCK decides",
            "Slurm bug 3363; opa-psm2, opa_proto.c",
        ),
    ),
    Signature(
        "PSM2 can't open hfi unit",
        Diagnosis(
            "psm-adapter",
            "PSM2 cannot open the Omni-Path adapter: the link is down, its contexts are used up, or the limit"
            " of locked memory is too low",
            "check `opainfo`, old ranks and `ulimit -l` on the host; on a host without the adapter, leave"
            " -PSM2 out of `launcher.options`",
            "opa-psm2, psm_context.c; pmodels/mpich#4757",
            is_consequence=True,
        ),
    ),
    Signature(
        "fabric is not available and fallback fabric is not enabled",
        Diagnosis(
            "impi-fabric",
            "Intel MPI cannot open the network that was asked for on this host, and may use no other",
            "check the adapter on the host; set I_MPI_FABRICS to a network that all hosts have, e.g. shm:tcp",
            "Intel MPI: I_MPI_FABRICS, I_MPI_FALLBACK",
        ),
    ),
    Signature(
        "OFI ",
        Diagnosis(
            "ofi-provider",
            "libfabric has no provider that works on this host for this MPI",
            "export FI_PROVIDER=tcp to test; `fi_info` lists the providers, and the host needs a network"
            " interface with an address",
            "firemodels/fds#7868, pmodels/mpich#6612, QMCPACK/qmcpack#1158",
        ),
        r"OFI (?:addrinfo|fi_getinfo)\(\) fail|OFI fi_fabric failed",
    ),
    Signature(
        "unrecognized argument pmi_args",
        Diagnosis(
            "hydra-singleton",
            "a program was started without mpiexec, or by the mpiexec of another MPI, and its own MPI then"
            " calls an mpiexec that does not fit it",
            "start it with the mpiexec of the MPI that it was compiled with, and keep other MPIs out of PATH"
            " and LD_LIBRARY_PATH",
            "pmodels/mpich#2175, ECMWFCode4Earth/ml_drought#71",
        ),
    ),
    Signature(
        "unrecognized argument",
        Diagnosis(
            "hydra-option",
            "this mpiexec does not know the option that is named, as -PSM2 in every hydra of today",
            "remove it from `launcher.options`, or use the Intel MPI of the recipe",
            "pmodels/mpich#7086, ComputationalRadiationPhysics/picongpu#3334",
        ),
        r"match_arg.*unrecognized argument",
    ),
    Signature(
        "HYDU_sock_connect",
        Diagnosis(
            "hydra-name",
            "a host cannot resolve the name of the host where mpiexec runs",
            "add that host to DNS or /etc/hosts of all hosts, or start mpiexec where all know its name",
            "pmodels/mpich#1146, open-mpi/ompi#7187",
        ),
        r"unable to get host address",
    ),
    Signature(
        "unable to connect ",
        Diagnosis(
            "hydra-firewall",
            "a host cannot connect to the port that mpiexec opened: a firewall, or a name that leads to"
            " another address",
            "open the ports between the hosts, or choose them (MPIEXEC_PORT_RANGE), and check what each host"
            " resolves the name to",
            "pmodels/mpich#3777, pmodels/mpich#1146",
        ),
        r"unable to connect (?:from \"|to server \S+ at port)",
    ),
    Signature(
        "execvp error on file ",
        Diagnosis(
            "program-missing",
            "the program that is named does not exist on that host, or may not be executed there",
            "keep it in a folder that all hosts share, or at the same path on each host",
            "pmodels/mpich#1106",
        ),
        r"execvp error on file .{1,500} \((?:No such file|Permission denied|Exec format)",
    ),
    Signature(
        "error while loading shared libraries: ",
        Diagnosis(
            "library-missing",
            "the program does not find the library that is named on that host",
            "export LD_LIBRARY_PATH to all ranks (mlslvars.sh and mpivars.sh set it), or install the library"
            " on every host",
            "intel/MLSL#4, BVLC/caffe#1988",
        ),
    ),
    Signature(
        "cannot open shared object file",
        Diagnosis(
            "python-library-missing",
            "a Python module does not find the library that is named on that host",
            "export LD_LIBRARY_PATH to all ranks, and install the version that the module was built for",
            "horovod/horovod#1370, intel/caffe#89",
        ),
        r"(?:ImportError|NotFoundError|OSError): \S+: cannot open shared object file",
    ),
    Signature(
        "' not found",
        Diagnosis(
            "library-too-old",
            "the program was compiled with a newer compiler or system than the library that it loads there",
            "put the newer libstdc++ first in LD_LIBRARY_PATH (not Anaconda's or MATLAB's), or compile on the"
            " oldest kind of host",
            "BVLC/caffe#4953",
        ),
        r"version [`'](?:GLIBCXX|GLIBC|CXXABI)_[\d.]+' not found",
    ),
    Signature(
        "Host key verification failed",
        Diagnosis(
            "ssh-host-key",
            "ssh does not know the host's key, or knows another one, and cannot ask",
            "log in to each host once by hand, or add its key with ssh-keyscan; remove an old one with"
            " ssh-keygen -R HOST",
            "horovod/horovod#110; ssh(1)",
        ),
    ),
    Signature(
        "Permission denied (",
        Diagnosis(
            "ssh-denied",
            "the host did not accept any of the user's ssh keys",
            "make `ssh -o BatchMode=yes HOST true` work for each host: add your public key to"
            " authorized_keys there, and check the user and the port",
            "horovod/horovod#467, horovod/horovod#2117",
        ),
        r"Permission denied \((?:[\w-]+,)*(?:publickey|password|gssapi|hostbased|keyboard)",
    ),
    Signature(
        "ssh: connect to host ",
        Diagnosis(
            "ssh-unreachable",
            "no ssh server answers on that host and port: the host is down, or the port is another one",
            "try `ssh HOST true`; take the host out of the hostfile, or replace it (--on-failure replace)",
            "horovod/horovod#1226; ssh(1)",
            repeats=False,
        ),
    ),
    Signature(
        "Could not resolve hostname",
        Diagnosis(
            "ssh-name",
            "this machine does not know the name of the host",
            "correct the name in the hostfile, or add it to DNS, /etc/hosts or ~/.ssh/config",
            "volcano-sh/volcano#2226; ssh(1)",
        ),
    ),
    Signature(
        "ORTE was unable to reliably start one or more daemons",
        Diagnosis(
            "orte-daemon",
            "Open MPI could not start its daemon on a host: ssh failed, or orted is not in the PATH there",
            "read the lines above; run mpirun by its full path, or with --prefix",
            "horovod/horovod#301",
            is_consequence=True,
        ),
    ),
    Signature(
        "oom",
        Diagnosis(
            "slurm-memory",
            "a process used more memory than the job may use on its node, and the kernel killed it",
            "ask for more memory (sbatch --mem, or --exclusive), or reduce the batch or the ranks per node",
            "hafs-community/HAFS#101, nathanweeks/exonerate#31",
        ),
        r"slurmstepd.*error: Detected \d+ oom[-_]kill events?",
    ),
    Signature(
        "Out Of Memory",
        Diagnosis(
            "slurm-rank-memory",
            "the kernel killed this rank because its node or job was out of memory",
            "ask for more memory (sbatch --mem, or --exclusive), or reduce the batch or the ranks per node",
            "chrisknewman/tusas#149",
            is_consequence=True,
        ),
        r"srun: error: .*: tasks? .*: Out Of Memory",
    ),
    Signature(
        "DUE TO TIME LIMIT",
        Diagnosis(
            "slurm-time",
            "the job reached its time limit, or that of its partition",
            "ask for more time (sbatch --time); run the same command again to resume",
            "ENCODE-DCC/caper#36, desihub/desitarget#628",
            repeats=False,
        ),
    ),
    Signature("DUE TO NODE FAILURE", _NODE_FAILED),
    Signature("Node failure on ", _NODE_FAILED, r"^(?:srun|salloc): error: Node failure on "),
    Signature(
        "DUE TO PREEMPTION",
        Diagnosis(
            "slurm-preempted",
            "a job of higher priority took the nodes",
            "run the same command again to resume, or use a partition that is not preempted",
            "Slurm, src/slurmd/slurmstepd/req.c: _handle_signal_container",
            repeats=False,
        ),
    ),
    Signature(
        "Out of memory: Kill",
        Diagnosis(
            "kernel-memory",
            "the host was out of memory, and the kernel killed the process that is named",
            "reduce the batch or the ranks per node; what else runs on the host counts, too",
            "Linux, mm/oom_kill.c",
        ),
        r"Out of memory: Kill(?:ed)? process",
    ),
    Signature(
        "std::bad_alloc",
        Diagnosis(
            "bad-alloc",
            "the process could not allocate memory on its host",
            "reduce the batch or the ranks per node, or raise the memory of the job; a corrupt record can ask"
            " for any amount, too",
            "weiliu89/caffe#689, KittiBox#29",
        ),
        r"^(?:terminate called after throwing an instance of|what\(\):) ",
    ),
    Signature(
        "SIGILL",
        Diagnosis("illegal-instruction", _WRONG_CPU, _OTHER_BUILD, "tensorflow/tensorflow#17411"),
        r"^\*\*\* SIGILL",
    ),
    Signature(
        "llegal instruction",
        Diagnosis("illegal-instruction", _WRONG_CPU, _OTHER_BUILD, "tensorflow/tensorflow#17411"),
        r"(?:^|: +|\d |STRING: )Illegal instruction(?: *\(|$)",
    ),
    Signature(
        "SIGBUS",
        Diagnosis("bus-error", _SHARED_MEMORY, _FREE_SHARED_MEMORY, _SHARED_MEMORY_SOURCE, is_guess=True),
        r"^\*\*\* SIGBUS",
    ),
    Signature(
        "us error",
        Diagnosis("bus-error", _SHARED_MEMORY, _FREE_SHARED_MEMORY, _SHARED_MEMORY_SOURCE, is_guess=True),
        r"(?:^|: +|\d |STRING: )Bus error(?: *\(|$)",
    ),
    Signature(
        "No space left on device",
        Diagnosis(
            "disk-full",
            "a disk is full; if a path below /dev/shm is named, it is shared memory",
            "run `df` on the path that is named, on that host, and free space",
            "write(2): ENOSPC",
        ),
    ),
    Signature(
        "Too many open files",
        Diagnosis(
            "open-files",
            "the process may not open more files or sockets",
            "raise `ulimit -n` on the hosts, also for the daemon that starts the ranks",
            "open(2): EMFILE",
        ),
    ),
    Signature(
        "Communication error with rank ",
        Diagnosis(
            "rank-gone",
            "the other rank has ended, or the address that it gave leads elsewhere",
            "read the first error of that rank; if there is none, check that no host maps its own name to"
            " 127.0.0.1 or 127.0.1.1 in /etc/hosts",
            "pmodels/mpich#5762, microsoft/LightLDA#62",
            is_guess=True,
            is_consequence=True,
        ),
    ),
    Signature(
        "CODE: ",
        Diagnosis(
            "killed",
            _RANK_KILLED,
            _FIRST_ERROR,
            "je-santos/MPLBM-UT#92, openai/jukebox#155",
            is_guess=True,
            is_consequence=True,
        ),
        r"^=\s+EXIT CODE: (?:9|137)\b",
    ),
    Signature(
        "SIGNAL: 9",
        Diagnosis(
            "killed",
            _RANK_KILLED,
            _FIRST_ERROR,
            "intel/caffe#274, je-santos/MPLBM-UT#92",
            is_guess=True,
            is_consequence=True,
        ),
        r"^=\s+KILLED BY SIGNAL: 9\b",
    ),
    Signature(
        "CODE: ",
        Diagnosis(
            "aborted",
            "a rank aborted, as after a check that failed",
            "read the F line or the exception of that rank above; without it, run one rank by itself",
            "google/glog: LOG(FATAL); abort(3)",
            is_consequence=True,
        ),
        r"^=\s+EXIT CODE: (?:6|134)\b",
    ),
    Signature(
        "CODE: ",
        _CRASHED,
        r"^=\s+EXIT CODE: (?:11|139)\b",
    ),
    Signature("SIGSEGV", _CRASHED, r"^\*\*\* SIGSEGV"),
    Signature(
        "SIGTERM",
        Diagnosis(
            "terminated",
            "the process was asked to end (SIGTERM): by a user, by Slurm, or by the launcher because another"
            " rank had ended",
            "if nobody meant to stop it, read the first error of the other ranks and the log of the job;"
            " resume from the last snapshot, as Caffe writes none then",
            "src/caffe/util/signal_handler.cpp; google/glog: InstallFailureSignalHandler",
            repeats=False,
            is_consequence=True,
        ),
        r"^\*\*\* SIGTERM",
    ),
    Signature("egmentation fault", _CRASHED, r"(?:^|: +|\d |STRING: )Segmentation fault(?: *\(|$|  )"),
    Signature(
        "Killed",
        Diagnosis(
            "killed",
            "the process was killed by SIGKILL, as by the kernel when the host is out of memory",
            "look for `Out of memory` in dmesg of the host, and reduce the batch or the ranks per node",
            "BVLC/caffe#886",
            is_guess=True,
            is_consequence=True,
        ),
        r"^Killed$|: line \d+: +\d+ Killed\b|srun: error: .*: tasks? .*: Killed",
    ),
)
