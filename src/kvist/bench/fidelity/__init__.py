"""How well what is planned is what is served: real loads on this machine's engine beside their prediction."""
