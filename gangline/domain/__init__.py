"""PURE: the domain, as plain frozen records that every floor shares. The records mirror protos/gangline/v1/types.proto
field by field; gangline.wire maps between the two."""
