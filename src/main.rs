fn main() -> std::process::ExitCode {
    tprimat::cli::main()
}
