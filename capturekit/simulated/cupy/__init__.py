"""The stand-in for CuPy over NumPy, put together by ``assembly``."""
