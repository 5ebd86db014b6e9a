"""All that crosses a wire: kinds, quantities, versions, defaults, validation, conversion, codec."""
