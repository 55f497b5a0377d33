"""What crosses rooms: frozen models of nodes, profiles and HTTP names."""
