"""Floor 6: training: the loop, tasks, paired comparisons."""
