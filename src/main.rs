use std::{env, path::Path, process};

fn main() {
    let arguments: Vec<_> = env::args_os().collect();
    if arguments.len() == 3 && arguments[1] == tprimat::execute::SUPERVISE_ARGUMENT {
        process::exit(tprimat::execute::supervise(Path::new(&arguments[2])));
    }
}
