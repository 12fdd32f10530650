"""From specs to records: training with checkpoints, campaigns, cost, the pictures' way onto the disk."""
