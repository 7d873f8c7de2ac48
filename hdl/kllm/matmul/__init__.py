"""The matmul engine and its phases."""
