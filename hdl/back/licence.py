"""The licence of what the generators write (docs/decisions/0111-licence-of-generated-files.md)."""

LICENCE = "SPDX-License-Identifier: Apache-2.0"  # in each file that has comments
