//! Whole-program tests: real processes, real files.

mod scripts;
