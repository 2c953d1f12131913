//! moto's S3 server (`pip install 'moto[server]'`), which speaks the protocol and keeps everything in
//! memory.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use nix::unistd::Pid;

use crate::support::{Project, Ran};

pub const SECRET: &str = "hunter2-the-secret-key-of-the-bucket";
pub const ADDRESS: &str = "s3://runs/of/us";

/// A server that ends with the test.
pub struct Server {
    child: Child,
    port: u16,
}

impl Server {
    pub fn start() -> Self {
        Self::start_at(0)
    }

    /// `port`: 0 for any that is free.
    fn start_at(port: u16) -> Self {
        let mut child = Command::new("moto_server")
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .env("PYTHONUNBUFFERED", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| {
                panic!("moto_server: {e}; `pip install 'moto[server]'` installs it, and PATH names its folder")
            });
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().expect("moto_server names its port").unwrap();
            if let Some((_, rest)) = line.split_once("http://127.0.0.1:") {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                break digits.parse().unwrap();
            }
        };
        // Whoever logs must be read.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self { child, port };
        let made = server.request("PUT /runs");
        assert!(made.contains(" 200 "), "{made}");
        server
    }

    /// A request of the test's own, past tprimat.
    pub fn request(&self, what: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let head = format!(
            "{what} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\nAuthorization: AWS somebody:else\r\n\r\n",
            self.port
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn run(&self, project: &Project, arguments: &[&str]) -> Ran {
        let mut command = project.tprimat(arguments);
        command.envs(self.variables());
        command.output().unwrap().into()
    }

    /// By what tprimat finds the server.
    pub fn variables(&self) -> [(&'static str, String); 6] {
        [
            ("TPRIMAT_REMOTE", ADDRESS.to_owned()),
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ]
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Another server at the same address, which has none of what this one had.
    pub fn begin_anew(&mut self) {
        self.stop();
        *self = Self::start_at(self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
