//! Local text → a dataset, with a tokenizer.json.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    panic,
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;
use tokenizers::Tokenizer;

use super::{Dtype, Writer, prefix_of};
use crate::error::{Error, Problem, Result, did_you_mean};

/// No document may be larger: memory is flat whatever the input.
const LARGEST_DOCUMENT: usize = 64 << 20;
/// Text that is tokenized at once, on all cores.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_DOCUMENTS: usize = 4096;

/// What models are known to call the token that ends a document.
const EOD_NAMES: [&str; 6] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<eod>",
];

/// What to encode, and how.
pub struct Encode<'a> {
    /// `.txt`, where blank lines stand between documents, or `.jsonl`, one document a line.
    pub inputs: &'a [PathBuf],
    /// A tokenizer.json, or a folder that has one.
    pub tokenizer: &'a Path,
    /// The prefix to write.
    pub output: &'a Path,
    /// Ends each document with a token of its own.
    pub append_eod: Option<Eod>,
    /// Where in a `.jsonl` line the text is.
    pub json_key: &'a str,
}

pub enum Eod {
    /// The tokenizer's own, where it is plain which one that is.
    Detect,
    Named(String),
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Encoded {
    pub documents: u64,
    pub tokens: u64,
    /// Documents without a token, which were left out.
    pub skipped_documents: u64,
    pub dtype: &'static str,
    /// One more than the tokenizer's largest token.
    pub vocab_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eod_token: Option<String>,
}

/// Writes nothing unless all of the input can be encoded.
pub fn encode(what: &Encode) -> Result<Encoded> {
    // Some tokenizer.json make the library panic, on reading or at some text.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let encoded = panic::catch_unwind(panic::AssertUnwindSafe(|| encode_all(what)));
    panic::set_hook(hook);
    encoded.unwrap_or_else(|cause| {
        let why = cause
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| cause.downcast_ref::<&str>().copied());
        Err(failed(
            what.tokenizer,
            &format!(
                "the tokenizer library gave up on it: {}",
                why.unwrap_or("no reason given")
            ),
        ))
    })
}

fn encode_all(what: &Encode) -> Result<Encoded> {
    let file = if what.tokenizer.is_dir() {
        what.tokenizer.join("tokenizer.json")
    } else {
        what.tokenizer.to_owned()
    };
    let mut tokenizer = load(&file)?;
    let vocab_size = u64::from(
        tokenizer
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |id| id.saturating_add(1)),
    );
    let eod = what
        .append_eod
        .as_ref()
        .map(|eod| eod_token(eod, &tokenizer, &file))
        .transpose()?;
    // Documents are whole, whatever a tokenizer.json was saved with.
    tokenizer.with_padding(None);
    tokenizer
        .with_truncation(None)
        .map_err(|e| failed(&file, &e.to_string()))?;
    let formats = what
        .inputs
        .iter()
        .map(|path| format_of(path))
        .collect::<Result<Vec<_>>>()?;
    let dtype = Dtype::for_vocabulary(vocab_size);
    let writer = Writer::create(&prefix_of(what.output), dtype)?;
    let mut batch = Batch {
        tokenizer,
        eod: eod.as_ref().map(|(_, id)| *id),
        writer,
        texts: Vec::new(),
        bytes: 0,
        documents: 0,
        skipped: 0,
    };
    for (path, format) in what.inputs.iter().zip(formats) {
        let mut lines = Lines::open(path)?;
        match format {
            Format::Text => paragraphs(&mut lines, &mut |text| batch.add(text))?,
            Format::JsonLines => {
                json_lines(&mut lines, what.json_key, &mut |text| batch.add(text))?
            }
        }
    }
    batch.flush()?;
    let Batch {
        writer,
        documents,
        skipped,
        ..
    } = batch;
    let tokens = writer.num_tokens();
    writer.finish()?;
    Ok(Encoded {
        documents,
        tokens,
        skipped_documents: skipped,
        dtype: dtype.name(),
        vocab_size,
        eod_token: eod.map(|(name, _)| name),
    })
}

enum Format {
    Text,
    JsonLines,
}

fn format_of(path: &Path) -> Result<Format> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("txt") => Ok(Format::Text),
        Some("jsonl" | "ndjson") => Ok(Format::JsonLines),
        _ => {
            let problem = Problem::new(format!("{} is neither .txt nor .jsonl", path.display()));
            Err(Error::invalid(problem.help(
                ".txt: documents with blank lines between; .jsonl: one JSON object a line",
            )))
        }
    }
}

fn load(file: &Path) -> Result<Tokenizer> {
    let bytes = crate::files::read(file)?;
    Tokenizer::from_bytes(&bytes).map_err(|e| {
        let problem = Problem::new(format!("{} is not a tokenizer: {e}", file.display()));
        Error::invalid(
            problem.help("expected the tokenizer.json of a model on the Hugging Face hub"),
        )
    })
}

/// The token and its number.
fn eod_token(eod: &Eod, tokenizer: &Tokenizer, file: &Path) -> Result<(String, u32)> {
    let known = |name: &str| Some((name.to_owned(), tokenizer.token_to_id(name)?));
    let name = match eod {
        Eod::Named(name) => name.clone(),
        Eod::Detect => {
            let beside = crate::files::read(&file.with_file_name("tokenizer_config.json")).ok();
            let config: Value = beside
                .and_then(|text| serde_json::from_slice(&text).ok())
                .unwrap_or_default();
            let stated = config["eos_token"]
                .as_str()
                .or_else(|| config["eos_token"]["content"].as_str());
            let candidates: Vec<_> = EOD_NAMES.iter().filter_map(|name| known(name)).collect();
            match (stated.map(str::to_owned), &candidates[..]) {
                (Some(name), _) => name,
                (None, [one]) => return Ok(one.clone()),
                (None, several) => {
                    let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                    let found = if names.is_empty() {
                        "none".to_owned()
                    } else {
                        names.join(" and ")
                    };
                    let problem = Problem::new(format!(
                        "{} does not say which token ends a document: {found} of the usual ones is in it",
                        file.display()
                    ));
                    return Err(Error::invalid(problem.help("name it: --append-eod=TOKEN")));
                }
            }
        }
    };
    known(&name).ok_or_else(|| {
        let problem = Problem::new(format!("{} has no token `{name}`", file.display()));
        let added = tokenizer.get_added_tokens_decoder();
        let names = added.values().map(|token| token.content.as_str());
        Error::invalid(Problem {
            help: did_you_mean(&name, names),
            ..problem
        })
    })
}

/// Documents that wait to be tokenized together.
struct Batch {
    tokenizer: Tokenizer,
    eod: Option<u32>,
    writer: Writer,
    texts: Vec<String>,
    bytes: usize,
    documents: u64,
    skipped: u64,
}

impl Batch {
    fn add(&mut self, text: String) -> Result<()> {
        self.bytes += text.len();
        self.texts.push(text);
        if self.bytes >= BATCH_BYTES || self.texts.len() >= BATCH_DOCUMENTS {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        let encodings = self
            .tokenizer
            .encode_batch_fast(std::mem::take(&mut self.texts), false);
        let encodings = encodings.map_err(|e| failed(Path::new("the text"), &e.to_string()))?;
        let mut tokens = Vec::new();
        for encoding in encodings {
            if encoding.get_ids().is_empty() {
                self.skipped += 1;
                continue;
            }
            tokens.clear();
            tokens.extend(
                encoding
                    .get_ids()
                    .iter()
                    .copied()
                    .chain(self.eod)
                    .map(i64::from),
            );
            self.writer.sequence(&tokens)?;
            self.writer.end_document()?;
            self.documents += 1;
        }
        Ok(())
    }
}

fn failed(what: &Path, why: &str) -> Error {
    Error::failed(format!("{} cannot be tokenized: {why}", what.display()))
}

/// A file line by line, in bounded memory.
struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    bytes: Vec<u8>,
    number: u64,
}

impl<'a> Lines<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("cannot read", path))?;
        Ok(Self {
            path,
            reader: BufReader::with_capacity(1 << 20, file),
            bytes: Vec::new(),
            number: 0,
        })
    }

    /// The next line without its end; `None` after the last one.
    fn next(&mut self) -> Result<Option<&str>> {
        self.bytes.clear();
        self.number += 1;
        let mut limited = (&mut self.reader).take(LARGEST_DOCUMENT as u64 + 1);
        let read = limited
            .read_until(b'\n', &mut self.bytes)
            .map_err(Error::io("cannot read", self.path))?;
        if read == 0 {
            return Ok(None);
        }
        if self.bytes.len() > LARGEST_DOCUMENT {
            return Err(self.wrong("is longer than 64 MiB"));
        }
        let end = self
            .bytes
            .strip_suffix(b"\n")
            .map_or(self.bytes.len(), |line| {
                line.strip_suffix(b"\r").unwrap_or(line).len()
            });
        self.bytes.truncate(end);
        std::str::from_utf8(&self.bytes)
            .map(Some)
            .map_err(|_| wrong_line(self.path, self.number, "is not UTF-8"))
    }

    fn wrong(&self, why: &str) -> Error {
        wrong_line(self.path, self.number, why)
    }
}

fn wrong_line(path: &Path, number: u64, why: &str) -> Error {
    Error::invalid(Problem::new(format!(
        "{}: line {number} {why}",
        path.display()
    )))
}

/// Documents are what stands between blank lines.
fn paragraphs(lines: &mut Lines, each: &mut dyn FnMut(String) -> Result<()>) -> Result<()> {
    let mut text = String::new();
    while let Some(line) = lines.next()? {
        if line.trim().is_empty() {
            if !text.is_empty() {
                each(std::mem::take(&mut text))?;
            }
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(line);
        if text.len() > LARGEST_DOCUMENT {
            return Err(lines.wrong(
                "is within a document of more than 64 MiB; put blank lines between documents",
            ));
        }
    }
    if text.is_empty() { Ok(()) } else { each(text) }
}

fn json_lines(
    lines: &mut Lines,
    key: &str,
    each: &mut dyn FnMut(String) -> Result<()>,
) -> Result<()> {
    loop {
        let parsed = match lines.next()? {
            None => return Ok(()),
            Some(line) if line.trim().is_empty() => continue,
            Some(line) => serde_json::from_str::<Value>(line),
        };
        let mut object = match parsed {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(lines.wrong("is not a JSON object")),
            Err(e) => return Err(lines.wrong(&format!("is not JSON: {e}"))),
        };
        match object.remove(key) {
            Some(Value::String(text)) => each(text)?,
            Some(_) => return Err(lines.wrong(&format!("has no text under `{key}`"))),
            None => {
                let problem = Problem::new(format!(
                    "{}: line {} has no key `{key}`",
                    lines.path.display(),
                    lines.number
                ));
                let keys: Vec<&str> = object.keys().map(String::as_str).take(8).collect();
                return Err(Error::invalid(
                    problem.help(format!("--json-key names it; it has {}", keys.join(", "))),
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{Dataset, verify},
        files::{self, Durability},
    };

    /// Words by number, split at white space; 3 is unknown.
    const TOKENIZER: &str = r#"{"version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": [{"id": 4, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1, "ten": 2, "[UNK]": 3}, "unk_token": "[UNK]"}}"#;

    struct Desk(tempfile::TempDir);

    impl Desk {
        fn new(files: &[(&str, &str)]) -> Self {
            let desk = Self(tempfile::tempdir().unwrap());
            for (name, text) in files.iter().chain(&[("tokenizer.json", TOKENIZER)]) {
                files::write_atomically(&desk.path(name), text.as_bytes(), Durability::Plain)
                    .unwrap();
            }
            desk
        }
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }
        fn encode(&self, inputs: &[&str], append_eod: Option<Eod>) -> Result<Encoded> {
            let inputs: Vec<_> = inputs.iter().map(|name| self.path(name)).collect();
            encode(&Encode {
                inputs: &inputs,
                tokenizer: self.0.path(),
                output: &self.path("out"),
                append_eod,
                json_key: "text",
            })
        }
        fn documents(&self) -> Vec<Vec<i64>> {
            let dataset = Dataset::open(&self.path("out")).unwrap();
            let mut tokens = Vec::new();
            dataset
                .index()
                .dtype()
                .decode(dataset.bin(), |t| tokens.push(t));
            let mut rest = tokens.into_iter();
            dataset
                .index()
                .lengths()
                .map(|n| rest.by_ref().take(n as usize).collect())
                .collect()
        }
    }

    #[test]
    fn blank_lines_and_json_lines_are_documents() {
        let text = "\none two\nten\n\n   \nten what\r\n\n";
        let lines = "{\"text\": \"two two\", \"id\": 1}\n\n{\"text\": \"  \"}\n{\"text\": \"one\"}";
        let desk = Desk::new(&[("a.txt", text), ("b.jsonl", lines)]);
        let encoded = desk
            .encode(&["a.txt", "b.jsonl"], Some(Eod::Detect))
            .unwrap();
        let expected = Encoded {
            documents: 4,
            tokens: 12,
            skipped_documents: 1,
            dtype: "uint16",
            vocab_size: 5,
            eod_token: Some("</s>".into()),
        };
        assert_eq!(encoded, expected);
        assert_eq!(
            desk.documents(),
            [&[0, 1, 2, 4][..], &[2, 3, 4], &[1, 1, 4], &[0, 4]]
        );
        assert_eq!(
            verify(&desk.path("out"), Some(5)).unwrap().problems,
            Vec::<String>::new()
        );
    }

    #[test]
    fn what_cannot_be_encoded_leaves_nothing() {
        let files = [
            ("bad.jsonl", "{\"text\": \"one\"}\n{\"txt\": \"one\"}"),
            ("a.md", "one"),
            ("a.txt", "one"),
        ];
        let desk = Desk::new(&files);
        let told = |inputs: &[&str], eod| desk.encode(inputs, eod).unwrap_err().to_string();
        assert!(
            told(&["a.txt", "bad.jsonl"], None).ends_with("bad.jsonl: line 2 has no key `text`")
        );
        assert!(told(&["a.txt", "a.md"], None).contains("neither .txt nor .jsonl"));
        assert!(told(&["a.txt"], Some(Eod::Named("<s>".into()))).contains("no token `<s>`"));
        assert!(!desk.path("out.bin").exists() && !desk.path("out.idx").exists());
        assert_eq!(desk.encode(&["a.txt"], None).unwrap().tokens, 1);
    }

    #[test]
    fn large_vocabularies_need_more_bytes() {
        assert_eq!(
            (Dtype::for_vocabulary(65_499), Dtype::for_vocabulary(65_500)),
            (Dtype::U16, Dtype::I32)
        );
    }
}
