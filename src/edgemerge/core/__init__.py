"""The mathematics: numpy, scipy and pure functions; no files, network, clock or chance."""
