"""The rehearsal: a real deploy to an emulated account, and real engines from what it left."""
