//! The page of a build, for browsers of this host: bound to the loopback address, read only, behind
//! a random word in its address.
//!
//! | address | |
//! |---|---|
//! | `/WORD/` | the page |
//! | `/WORD/board` | a `Board` as JSON |
//! | `/WORD/log?task=NAME&from=BYTE` | a `LogPart` as JSON |
//! | `/WORD/report` | the report of the build, once there is one |

use std::{
    fs::File,
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use tiny_http::{Header, Method, Request, Response};

use crate::board::Board;

/// A board is made at most once in this time, however many look at it.
const FRESH: Duration = Duration::from_millis(500);
/// Requests that are answered at once; a page makes two.
const THREADS: usize = 4;
/// No address of this server is longer.
const LONGEST_ADDRESS: usize = 4096;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Where the data of a build are from.
pub trait Source: Send + Sync {
    fn board(&self) -> Board;
    /// What the log of a running task has from byte `from` on, as much as fits into a page; None:
    /// there is no log.
    fn log(&self, task: &str, from: u64) -> Option<LogPart>;
    /// The report of the build, as one HTML file.
    fn report(&self) -> Option<Vec<u8>>;
}

/// A piece of a log, whose secrets are masked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogPart {
    /// Byte at which `text` begins; beyond the one that was asked for where too much lay between.
    pub from: u64,
    /// Byte to ask for next.
    pub next: u64,
    pub text: String,
}

pub struct Server {
    http: Arc<tiny_http::Server>,
    word: String,
    address: SocketAddr,
}

struct Shared<S> {
    source: S,
    word: String,
    board: Mutex<Option<(Instant, Arc<Vec<u8>>)>>,
}

impl Server {
    /// Listens on the loopback address; port 0 takes any that is free.
    pub fn bind(port: u16) -> io::Result<Self> {
        let http =
            tiny_http::Server::http((Ipv4Addr::LOCALHOST, port)).map_err(io::Error::other)?;
        let address = http
            .server_addr()
            .to_ip()
            .ok_or_else(|| io::Error::other("no address"))?;
        Ok(Self {
            http: Arc::new(http),
            word: random_word()?,
            address,
        })
    }

    /// What to open in a browser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.word)
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Answers until `is_over` says so, which is asked twice a second.
    pub fn serve(&self, source: impl Source, mut is_over: impl FnMut() -> bool) {
        let shared = Shared {
            source,
            word: self.word.clone(),
            board: Mutex::new(None),
        };
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while let Ok(request) = self.http.recv() {
                        // Whoever went away gets no answer.
                        let _ = shared.answer(request);
                    }
                });
            }
            while !is_over() {
                thread::sleep(FRESH);
            }
            for _ in 0..THREADS {
                self.http.unblock();
            }
        });
    }
}

impl<S: Source> Shared<S> {
    fn answer(&self, request: Request) -> io::Result<()> {
        let is_read = matches!(request.method(), Method::Get | Method::Head);
        if !is_read {
            return request.respond(text(405, "this page is read only"));
        }
        if !is_of_this_host(&request) {
            return request.respond(text(403, "only for this host"));
        }
        let address = request.url().to_owned();
        let (path, query) = address.split_once('?').unwrap_or((&address, ""));
        // An address without the word is as good as one that does not exist.
        let Some(path) = path
            .strip_prefix('/')
            .and_then(|path| path.strip_prefix(self.word.as_str()))
        else {
            return request.respond(text(404, "there is nothing here"));
        };
        if address.len() > LONGEST_ADDRESS {
            return request.respond(text(414, "the address is too long"));
        }
        let found = match path {
            "/" => Some(("text/html; charset=utf-8", PAGE.as_bytes().to_vec())),
            "/page.css" => Some(("text/css; charset=utf-8", STYLE.as_bytes().to_vec())),
            "/page.js" => Some(("text/javascript; charset=utf-8", SCRIPT.as_bytes().to_vec())),
            "/board" => Some(("application/json", self.board().to_vec())),
            "/log" => {
                let asked = |name| value(query, name);
                let from = asked("from")
                    .and_then(|from| from.parse().ok())
                    .unwrap_or(0);
                let part = self.source.log(&asked("task").unwrap_or_default(), from);
                part.and_then(|part| serde_json::to_vec(&part).ok())
                    .map(|bytes| ("application/json", bytes))
            }
            "/report" => self
                .source
                .report()
                .map(|bytes| ("text/html; charset=utf-8", bytes)),
            _ => None,
        };
        match found {
            // The report holds its own scripts and pictures; everything else loads only from here.
            Some((kind, bytes)) => request.respond(response(
                200,
                kind,
                bytes,
                if path == "/report" {
                    REPORT_POLICY
                } else {
                    POLICY
                },
            )),
            None => request.respond(text(404, "there is nothing here")),
        }
    }

    fn board(&self) -> Arc<Vec<u8>> {
        let mut kept = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, bytes)) = &*kept
            && made.elapsed() < FRESH
        {
            return bytes.clone();
        }
        let bytes = Arc::new(serde_json::to_vec(&self.source.board()).unwrap_or_default());
        *kept = Some((Instant::now(), bytes.clone()));
        bytes
    }
}

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const REPORT_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
                             base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

fn response(
    status: u16,
    kind: &str,
    bytes: Vec<u8>,
    policy: &str,
) -> Response<io::Cursor<Vec<u8>>> {
    let mut response = Response::from_data(bytes).with_status_code(status);
    for (name, value) in [
        ("Content-Type", kind),
        ("Content-Security-Policy", policy),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        // The address holds the word that opens the page.
        ("Referrer-Policy", "no-referrer"),
    ] {
        if let Ok(header) = Header::from_bytes(name, value) {
            response.add_header(header);
        }
    }
    response
}

fn text(status: u16, words: &str) -> Response<io::Cursor<Vec<u8>>> {
    response(
        status,
        "text/plain; charset=utf-8",
        words.as_bytes().to_vec(),
        POLICY,
    )
}

/// A page of somebody else's whose name was made to point here has another name in its `Host`. The
/// port may be that of a tunnel.
fn is_of_this_host(request: &Request) -> bool {
    let host = request
        .headers()
        .iter()
        .find(|header| header.field.equiv("Host"));
    let Some(host) = host.map(|header| header.value.as_str()) else {
        return false;
    };
    let name = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
        .map_or(host, |(n, _)| n);
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

/// The value of a name in a query, with its %-escapes read.
fn value(query: &str, name: &str) -> Option<String> {
    let raw = query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.get(..2)).flatten();
        let escaped = escaped
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// 128 random bits.
fn random_word() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::TcpStream,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    use super::*;

    /// Counts how often it was asked.
    struct Fixture<'a>(&'a AtomicUsize);

    impl Source for Fixture<'_> {
        fn board(&self) -> Board {
            self.0.fetch_add(1, Ordering::Relaxed);
            Board::default()
        }

        fn log(&self, task: &str, from: u64) -> Option<LogPart> {
            (task == "train a b#1").then(|| LogPart {
                from,
                next: from + 3,
                text: "</script>".into(),
            })
        }

        fn report(&self) -> Option<Vec<u8>> {
            Some(b"<p>report</p>".to_vec())
        }
    }

    fn ask(address: SocketAddr, line: &str, host: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn it_answers_whoever_has_the_word_on_this_host_and_nobody_else() {
        let (server, asked, over) = (
            Server::bind(0).unwrap(),
            AtomicUsize::new(0),
            AtomicBool::new(false),
        );
        let (address, word) = (server.address, server.word.clone());
        assert!(address.ip().is_loopback() && word.len() == 32);
        thread::scope(|scope| {
            scope.spawn(|| server.serve(Fixture(&asked), || over.load(Ordering::Relaxed)));
            let status = |line: &str, host: &str| {
                ask(address, line, host)
                    .get(9..12)
                    .map(str::to_owned)
                    .unwrap()
            };
            let of_word = |path: &str| format!("GET /{word}{path}");
            assert_eq!(status(&of_word("/"), "127.0.0.1:1"), "200");
            assert_eq!(
                status(&of_word("/"), "localhost:9000"),
                "200",
                "as through a tunnel"
            );
            assert_eq!(
                status(&of_word("/"), "evil.example"),
                "403",
                "a name that was made to point here"
            );
            for path in [
                "/",
                "/board",
                &format!("/{}/board", "0".repeat(32)),
                "/../etc/passwd",
            ] {
                assert_eq!(status(&format!("GET {path}"), "localhost"), "404", "{path}");
            }
            assert_eq!(status(&of_word("/../../etc/passwd"), "localhost"), "404");
            assert_eq!(status(&format!("POST /{word}/board"), "localhost"), "405");
            let log = ask(
                address,
                &of_word("/log?task=train%20a%20b%231&from=4"),
                "localhost",
            );
            assert!(
                log.contains(r#"{"from":4,"next":7,"text":"</script>"}"#)
                    && log.contains("nosniff"),
                "{log}"
            );
            assert_eq!(status(&of_word("/log?task=other"), "localhost"), "404");
            assert!(ask(address, &of_word("/report"), "localhost").ends_with("<p>report</p>"));
            let before = asked.load(Ordering::Relaxed);
            for _ in 0..20 {
                ask(address, &of_word("/board"), "localhost");
            }
            assert!(
                asked.load(Ordering::Relaxed) - before < 20,
                "viewers share a board"
            );
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_value_is_read_with_its_escapes() {
        assert_eq!(
            value("a=1&task=x%2Fy%20z", "task").as_deref(),
            Some("x/y z")
        );
        assert_eq!(value("task=100%", "task").as_deref(), Some("100%"));
        assert_eq!(value("task=%ff", "task"), None);
        assert_eq!(value("mytask=1", "task"), None);
    }
}
