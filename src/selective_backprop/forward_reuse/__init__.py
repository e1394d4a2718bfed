"""Forward reuse: one forward pass serves selection and training."""
