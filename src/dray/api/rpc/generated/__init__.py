"""Code made by tools/protos from ../protos; do not edit."""
