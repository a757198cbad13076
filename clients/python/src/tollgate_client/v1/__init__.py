"""Messages and stubs of `tollgate.v1`, generated while the package is built."""
