"""Results as pages: one self-contained HTML file each, which opens anywhere, without a network."""
