//! Whole-program tests: real processes, real files.

mod scripts;
mod whole {
    pub(crate) mod lab;
    pub(crate) mod tiny;

    mod architecture;
    mod book;
    mod failures;
    mod inputs;
    mod kills;
    mod leaving;
    mod refusals;
    mod verdict;
}
