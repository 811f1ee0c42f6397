"""The ground: errors, files, configuration, options, logging, launching. No torch, no speech."""
