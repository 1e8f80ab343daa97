//! The `labbook` program.
fn main() {}
