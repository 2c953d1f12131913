//! Container images and a shell in one.

use clap::{Args, Subcommand};

#[derive(Subcommand, Clone, Debug)]
pub enum ContainerCommand {
    /// Render the Dockerfile of a framework and build its image with docker or podman
    Build(BuildImageArgs),
    /// Fetch the image that a framework's runs are started in, or else its base image
    Pull(PullImageArgs),
    /// List the images that config.yaml's platforms and frameworks run in, and which of them are on
    /// this host
    List {
        #[arg(long = "set", value_name = "PATH=VALUE")]
        sets: Vec<String>,
    },
    /// Open a shell in a framework's container, with the project and the GPUs
    Shell(ShellArgs),
}

#[derive(Args, Clone, Debug)]
pub struct PullImageArgs {
    /// A framework, or a cell of it: platform/framework/…
    #[arg(value_name = "CELL|FRAMEWORK")]
    pub target: String,
    /// For which platform, where no cell says it
    #[arg(long, value_name = "PLATFORM")]
    pub platform: Option<String>,
    /// Print the command; fetch nothing
    #[arg(long)]
    pub print: bool,
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct BuildImageArgs {
    /// A framework, or a cell of it: platform/framework/…
    #[arg(value_name = "CELL|FRAMEWORK")]
    pub target: String,
    /// For which platform, where no cell says it
    #[arg(long, value_name = "PLATFORM")]
    pub platform: Option<String>,
    /// The base image [default: frameworks.<id>.image of config.yaml, then the recipe's]
    #[arg(long, value_name = "IMAGE")]
    pub base: Option<String>,
    /// Let the container run as this user instead of the base image's, which is often root
    #[arg(long, value_name = "UID[:GID]")]
    pub user: Option<String>,
    /// The name of the image [default: tprimat/<framework>:<vendor>]
    #[arg(long, value_name = "NAME")]
    pub tag: Option<String>,
    /// Print the Dockerfile and the command; build nothing
    #[arg(long)]
    pub print: bool,
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct ShellArgs {
    /// Whose GPUs, and whose environment
    #[arg(value_name = "PLATFORM")]
    pub platform: String,
    /// Whose image [default: the first framework of config.yaml with one]
    #[arg(long, value_name = "FRAMEWORK")]
    pub framework: Option<String>,
    /// Another image
    #[arg(long, value_name = "NAME")]
    pub image: Option<String>,
    /// A folder of the host to mount, besides the project, HF_HOME, checkouts, datasets and device locks
    #[arg(long, value_name = "HOST[:CONTAINER]")]
    pub volume: Vec<String>,
    /// Print the command; run nothing
    #[arg(long)]
    pub print: bool,
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
    /// What to run in place of a shell
    #[arg(last = true)]
    pub command: Vec<String>,
}
