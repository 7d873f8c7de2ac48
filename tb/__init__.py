"""Co-simulation: golden == RTL under random stalls; ``pytest tb/`` does all."""
