"""QET: swap networks that sort neighbouring columns into parts, and their inverse."""
