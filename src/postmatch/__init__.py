"""Ask any VAE any conditional question, by Posterior Matching."""
