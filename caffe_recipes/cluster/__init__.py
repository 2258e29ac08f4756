"""Where a recipe runs: hostfiles, hosts, launchers, staging. Knows no Caffe and no recipe. Floor 2."""
