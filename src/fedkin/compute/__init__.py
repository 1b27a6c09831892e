"""What computing rests on: compiled functions, threads, devices, and the step rules of stacked clients."""
