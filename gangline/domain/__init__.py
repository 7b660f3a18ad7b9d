"""PURE: the domain, as plain frozen records that every floor shares. They mirror protos/gangline/v1/types.proto field
by field; gangline.wire maps between the two."""
