//! Whole-program tests: real processes, real files.

mod scripts;
mod whole {
    pub(crate) mod bed;
    pub(crate) mod lab;
    pub(crate) mod tiny;

    mod architecture;
    mod book;
    mod doctor;
    mod failures;
    mod inputs;
    mod kills;
    mod leaving;
    mod refusals;
    mod ssh;
    mod sglang;
    mod verdict;
}
