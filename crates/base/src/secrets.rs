//! Values that nobody may read, known because a trainer gets them: a trainer may print its
//! environment, and an error message may quote an address with a password in it. They are
//! overwritten where the trainer's bytes are kept, so that whatever is made of a log later
//! (evidence, tables, pages, comments on a pull request) has none.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use crate::words::{
    part,
    secret::{is_secret, passwords_in},
};
use aho_corasick::AhoCorasick;
use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    error::Result,
    files::{self, Durability},
};

/// A shorter value cannot be told from an ordinary word or number of a log.
const SHORTEST: usize = 8;
/// Bytes of a log that are searched at once.
const CHUNK: usize = 1 << 20;

/// Searches for the secret values of an environment.
pub struct Secrets {
    search: Option<AhoCorasick>,
    words: Words,
    longest: usize,
}

/// What a run folder has of the secrets that the run was given, so that its log can be masked by
/// somebody who does not know them: the words of the values by their lengths and by 32 bits of a
/// salted digest, from which no word follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Words {
    salt: String,
    known: BTreeSet<(usize, u32)>,
    /// Each value is one such word, so that nothing of it is left where the words are masked.
    #[serde(default)]
    are_whole: bool,
}

impl Words {
    fn of(env: &BTreeMap<String, String>) -> Self {
        use std::hash::{BuildHasher, RandomState};
        let mut words = Self {
            salt: String::new(),
            known: BTreeSet::new(),
            are_whole: true,
        };
        for _ in 0..2 {
            words.salt += &format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        }
        for value in values(env) {
            let is_one = word_places(value.as_bytes()).eq(std::iter::once(0..value.len()));
            words.are_whole &= is_one && is_tellable(&value);
            let parts = word_places(value.as_bytes())
                .map(|place| part(&value, place))
                .filter(|part| is_tellable(part));
            let known: Vec<_> = parts
                .map(|part| (part.len(), words.digest(part.as_bytes())))
                .collect();
            words.known.extend(known);
        }
        words
    }

    fn digest(&self, word: &[u8]) -> u32 {
        let digest = Digest::of([self.salt.as_bytes(), word].concat());
        u32::from_le_bytes([digest.0[0], digest.0[1], digest.0[2], digest.0[3]])
    }

    fn places(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let lengths: BTreeSet<usize> = self.known.iter().map(|(length, _)| *length).collect();
        let is_known = |place: &Range<usize>| {
            lengths.contains(&place.len())
                && self
                    .known
                    .contains(&(place.len(), self.digest(&bytes[place.clone()])))
        };
        word_places(bytes).filter(is_known).collect()
    }
}

/// Unbroken runs of the characters that tokens consist of.
fn word_places(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let is_in_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + bytes[at..].iter().position(is_in_word)?;
        at = bytes[start..]
            .iter()
            .position(|byte| !is_in_word(byte))
            .map_or(bytes.len(), |length| start + length);
        Some(start..at)
    })
}

/// The secret values of an environment, in all spellings that are looked for.
fn values(env: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut values: BTreeSet<String> = BTreeSet::new();
    for (name, value) in env {
        if is_secret(name) {
            // A key of several lines may be printed line by line.
            let parts = value.lines().chain([value.as_str()]).map(str::trim);
            values.extend(parts.filter(|part| is_tellable(part)).flat_map(spellings));
        }
        for password in passwords_in(value) {
            // With the `@` behind it.
            values.insert(part(value, password.start..=password.end).to_owned());
            let secret = part(value, password).rsplit(':').next().unwrap_or_default();
            values.extend(
                Some(secret)
                    .filter(|secret| is_tellable(secret))
                    .map(str::to_owned),
            );
        }
    }
    values
}

fn words_path(run: &Path) -> PathBuf {
    run.join("secrets.json")
}

impl Secrets {
    #[must_use]
    pub fn of(env: &BTreeMap<String, String>) -> Self {
        let values = values(env);
        let longest = values.iter().map(String::len).max().unwrap_or(0);
        // A search that cannot be built is larger than any environment makes it.
        let search = (longest > 0)
            .then(|| AhoCorasick::new(&values).expect("an environment is no larger than this"));
        Self {
            search,
            longest,
            words: Words::default(),
        }
    }

    /// Notes in a run's folder what masks its secrets without naming them.
    pub fn note(env: &BTreeMap<String, String>, run: &Path) -> Result<()> {
        let words = Words::of(env);
        if words.known.is_empty() && words.are_whole {
            return Ok(());
        }
        let text = serde_json::to_vec(&words).unwrap_or_default();
        files::write_atomically(&words_path(run), &text, Durability::Plain)
    }

    /// Those that a run was given, as its folder has them: whole words of eight characters or more.
    #[must_use]
    pub fn noted(run: &Path) -> Self {
        let bytes = files::read(&words_path(run)).unwrap_or_default();
        let words: Words = serde_json::from_slice(&bytes).unwrap_or_default();
        // A word is known once the character after it is seen.
        let longest = words
            .known
            .iter()
            .map(|(length, _)| length.saturating_add(1).min(CHUNK))
            .max()
            .unwrap_or(0);
        Self {
            search: None,
            longest,
            words,
        }
    }

    /// Does the folder of a run mask all that the run was given that is secret?
    #[must_use]
    pub fn are_noted_whole(run: &Path) -> bool {
        match files::read(&words_path(run)) {
            Ok(text) => serde_json::from_slice::<Words>(&text).is_ok_and(|words| words.are_whole),
            // It is written before anything runs, and not where nothing is secret.
            Err(_) => !words_path(run).exists(),
        }
    }

    /// No secret has more bytes.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The secrets in this process's own environment.
    #[must_use]
    pub fn of_caller() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::of(&std::env::vars_os().filter_map(text).collect())
    }

    /// Overwrites every secret value by as many `*`; line breaks stay.
    pub fn mask(&self, bytes: &mut [u8]) {
        for place in self.places(bytes) {
            bytes[place]
                .iter_mut()
                .filter(|byte| **byte != b'\n')
                .for_each(|byte| *byte = b'*');
        }
    }

    #[must_use]
    pub fn mask_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.places(text.as_bytes()).is_empty() {
            return Cow::Borrowed(text);
        }
        let mut bytes = text.as_bytes().to_vec();
        self.mask(&mut bytes);
        Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The same in a file that nobody writes to any more. Its length stays, and so does what is
    /// known of its offsets.
    pub fn mask_file(&self, file: &File) -> io::Result<()> {
        if self.longest == 0 {
            return Ok(());
        }
        let mut buffer = vec![0; CHUNK + self.longest];
        let mut at = 0;
        loop {
            let read = read_at(file, &mut buffer, at)?;
            for place in self.places(&buffer[..read]) {
                let mut stars = buffer[place.clone()].to_vec();
                stars
                    .iter_mut()
                    .filter(|byte| **byte != b'\n')
                    .for_each(|byte| *byte = b'*');
                file.write_all_at(&stars, at + place.start as u64)?;
            }
            if read < buffer.len() {
                return Ok(());
            }
            // What begins in the last bytes of this piece ends in the next one.
            at += CHUNK as u64;
        }
    }

    fn places(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let found = self
            .search
            .iter()
            .flat_map(|search| search.find_overlapping_iter(bytes));
        let mut places: Vec<Range<usize>> = found.map(|found| found.range()).collect();
        if !self.words.known.is_empty() {
            places.extend(self.words.places(bytes));
        }
        places
    }
}

/// Text without the secrets of this process's own environment.
#[must_use]
pub fn masked(text: &str) -> Cow<'_, str> {
    static CALLER: LazyLock<Secrets> = LazyLock::new(Secrets::of_caller);
    CALLER.mask_text(text)
}

fn is_tellable(value: &str) -> bool {
    value.len() >= SHORTEST && value.parse::<f64>().is_err()
}

/// A value as it is, as JSON quotes it, and as an address has it.
fn spellings(value: &str) -> Vec<String> {
    let quoted = serde_json::to_string(value).unwrap_or_default();
    let mut in_address = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                in_address.push(char::from(byte))
            }
            other => in_address += &format!("%{other:02X}"),
        }
    }
    vec![
        value.to_owned(),
        quoted.trim_matches('"').to_owned(),
        in_address,
    ]
}

fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], at + read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secrets(env: &[(&str, &str)]) -> Secrets {
        Secrets::of(
            &env.iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn values_of_secret_names_and_passwords_in_addresses_are_masked() {
        let secrets = secrets(&[
            ("HF_TOKEN", "hf_SuperSecret123"),
            ("SSH_KEY", "BEGIN KEY\nabcdefghijkl\nmnopqrstuvwx\nEND KEYS"),
            ("DB_PASSWORD", "p\"ss w/rd"),
            ("https_proxy", "http://user:pw@proxy:3128"),
            ("API_KEY", "short"),
            ("MAX_TOKEN", "12345678"),
            ("PATH", "/usr/bin:/usr/local/bin"),
        ]);
        for (text, masked) in [
            (
                "clone https://u:hf_SuperSecret123@hub",
                "clone https://u:*****************@hub",
            ),
            ("one mnopqrstuvwx two", "one ************ two"),
            (r#"{"a":"p\"ss w/rd"}"#, r#"{"a":"**********"}"#),
            ("x=p%22ss%20w%2Frd", "x=***************"),
            (
                "via http://user:pw@proxy:3128",
                "via http://********proxy:3128",
            ),
            (
                "short 12345678 /usr/bin:/usr/local/bin user",
                "short 12345678 /usr/bin:/usr/local/bin user",
            ),
        ] {
            assert_eq!(secrets.mask_text(text), masked);
        }
        let mut key = b"BEGIN KEY\nabcdefghijkl\n".to_vec();
        secrets.mask(&mut key);
        assert_eq!(key, b"*********\n************\n");
    }

    #[test]
    fn the_longer_of_two_values_is_masked_whole() {
        let secrets = secrets(&[("A_TOKEN", "abcdefgh"), ("B_TOKEN", "abcdefghijkl")]);
        assert_eq!(
            secrets.mask_text("abcdefghijkl abcdefgh"),
            "************ ********"
        );
    }

    #[test]
    fn a_run_folder_masks_secrets_that_it_does_not_name() {
        let env = [
            ("HF_TOKEN", "hf_SuperSecret123"),
            ("DATABASE", "postgres://me:pgSuperSecret789@db/x"),
            ("PATH", "/usr/local/bin"),
        ];
        let env: BTreeMap<String, String> = env
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        Secrets::note(&env, folder.path()).unwrap();
        Secrets::note(&env, other.path()).unwrap();
        let texts = [&folder, &other]
            .map(|run| String::from_utf8(files::read(&words_path(run.path())).unwrap()).unwrap());
        assert!(
            !texts[0].contains("SuperSecret") && texts[0] != texts[1],
            "{texts:?}"
        );
        let noted = Secrets::noted(folder.path());
        for (text, masked) in [
            (
                "clone https://u:hf_SuperSecret123@hub",
                "clone https://u:*****************@hub",
            ),
            ("HF_TOKEN=hf_SuperSecret123", "HF_TOKEN=*****************"),
            (
                "postgres://me:pgSuperSecret789@db",
                "postgres://me:****************@db",
            ),
            (
                "/usr/local/bin hf_SuperSecret124 hf_SuperSecret1234",
                "/usr/local/bin hf_SuperSecret124 hf_SuperSecret1234",
            ),
        ] {
            assert_eq!(noted.mask_text(text), masked);
        }
        assert_eq!(
            Secrets::noted(Path::new("/nonexistent")).mask_text("hf_SuperSecret123"),
            "hf_SuperSecret123"
        );
        // Nothing is noted of a run without secrets.
        let empty = tempfile::tempdir().unwrap();
        Secrets::note(&BTreeMap::new(), empty.path()).unwrap();
        assert!(!words_path(empty.path()).exists());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_file_is_masked_as_its_bytes_are(places in prop::collection::vec(0..3 * CHUNK, 1..8), edge in 0..20_usize) {
            let secrets = secrets(&[("HF_TOKEN", "hf_SuperSecret123")]);
            let mut bytes = vec![b'x'; 3 * CHUNK + 40];
            for place in places.into_iter().chain([CHUNK - edge, 2 * CHUNK - edge]) {
                bytes[place..place + 17].copy_from_slice(b"hf_SuperSecret123");
            }
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            secrets.mask_file(&file).unwrap();
            secrets.mask(&mut bytes);
            let mut masked = vec![0; bytes.len() + 1];
            prop_assert_eq!(read_at(&file, &mut masked, 0).unwrap(), bytes.len());
            prop_assert!(masked[..bytes.len()] == bytes[..]);
        }
    }
}
