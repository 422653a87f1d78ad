"""What BLIS did, played against `maitred.simulate`."""
