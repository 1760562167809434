"""Looking inside: plots of training and of attention."""
