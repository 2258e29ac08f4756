"""Where a recipe runs: hostfiles, hosts, launchers, staging. Knows neither Caffe nor recipes. Floor 2."""
