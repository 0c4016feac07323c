"""One VAE, one file; the contract is in base."""
