"""Read and write files that other users could have put there, or that could be pipes or endless."""
