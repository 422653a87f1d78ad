"""maitred inside other systems: what another engine loads from here, one package for each engine."""
