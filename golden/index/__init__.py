"""Golden models of what index-based schemes share: k-means, nearest, histograms, look-ups."""
