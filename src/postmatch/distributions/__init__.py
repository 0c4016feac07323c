"""What torch.distributions lacks."""
