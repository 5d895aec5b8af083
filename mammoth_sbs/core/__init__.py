"""The algorithm: learning speed (Eq. 1), the band D'_t, and samplers. torch and numpy, nothing of Mammoth."""
