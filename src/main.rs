//! The `labbook` program.

fn main() -> std::process::ExitCode {
    labbook::cli::main()
}
