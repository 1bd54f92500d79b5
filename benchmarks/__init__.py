"""What tokenswarm is measured against: a ground truth in C, the physical limit, and its peers."""
