//! Empty: this package only has tests.
