//! Messages have no constructions that readers stumble over.

use crate::documents::files_below;

/// Constructions over which readers stumble, and what to say instead.
const STUMBLES: [(&str, &str); 11] = [
    (r"\b(\w+) (?:is|are|was|were) no (\w+)", "\"is not a …\""),
    (r"\bso many\b", "the number"),
    (r"\b(?:[Ss]uch)\b", "name the thing"),
    (r"\bof nobody\b", "\"nobody's\""),
    (
        r"\b(?:stated|told|named) by neither\b",
        "\"neither log states …\"",
    ),
    (r"\bis called so\b", "\"has this name\""),
    (r"\b(?:is|are) wanted\b", "\"expected …\""),
    (r"\bstand beside\b", "\"compare\""),
    (r"\bnames no\b", "\"has no …\""),
    (r"\bwhoever\b", "name the person"),
    (r"^Of (?:the|all|what)\b", "begin with the subject"),
];

static PATTERNS: std::sync::LazyLock<Vec<(regex::Regex, &'static str)>> =
    std::sync::LazyLock::new(|| {
        STUMBLES
            .iter()
            .map(|(pattern, better)| (regex::Regex::new(pattern).unwrap(), *better))
            .collect()
    });

/// The first construction of the list in a sentence, with its better words.
fn stumble(sentence: &str) -> Option<(String, &'static str)> {
    PATTERNS.iter().find_map(|(pattern, better)| {
        pattern.captures_iter(sentence).find_map(|found| {
            let word = |at: usize| found.get(at).map_or("", |word| word.as_str());
            // "There is no matrix" and "is no longer" are plain words; "No such file" is the
            // operating system's, "no such container" Docker's.
            let is_plain = word(1).eq_ignore_ascii_case("there")
                || ["longer", "more", "less", "larger"].contains(&word(2));
            let is_of_others = ["No such file", "no such file", "no such container"]
                .iter()
                .any(|said| sentence.contains(said));
            (!is_plain && !is_of_others).then(|| (found[0].to_owned(), *better))
        })
    })
}

/// The string literals of a source's own code: no comments, no tests.
fn literals(source: &str) -> Vec<String> {
    static TESTS: std::sync::LazyLock<regex::Regex> = std::sync::LazyLock::new(|| {
        regex::Regex::new(r"#\[cfg\(test\)\]\n(pub(\(\w+\))? )?mod \w+ \{").unwrap()
    });
    let code = TESTS.split(source).next().unwrap_or_default();
    let (mut found, mut chars) = (Vec::new(), code.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => {
                chars.by_ref().find(|c| *c == '\n');
            }
            // A quote as a character, not a lifetime.
            '\'' if matches!(chars.peek(), Some('"' | '\\')) => {
                chars
                    .next()
                    .filter(|c| *c == '\\')
                    .and_then(|_| chars.next());
            }
            'r' if chars.peek() == Some(&'#') => {
                let hashes: String = std::iter::from_fn(|| chars.next_if_eq(&'#')).collect();
                if chars.next_if_eq(&'"').is_some() {
                    let mut text = String::new();
                    let end = format!("\"{hashes}");
                    while !text.ends_with(&end) {
                        let Some(c) = chars.next() else { break };
                        text.push(c);
                    }
                    found.push(text.trim_end_matches(&end).to_owned());
                }
            }
            '"' => {
                let mut text = String::new();
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match c {
                        '\\' if chars.peek() == Some(&'\n') => {
                            while chars.next_if(|c| c.is_whitespace()).is_some() {}
                        }
                        '\\' => text.extend(chars.next()),
                        c => text.push(c),
                    }
                }
                found.push(text);
            }
            _ => {}
        }
    }
    found
}

/// What tprimat says, in its sources and in the snapshots of its messages, is said in words that
/// are understood at once.
#[test]
fn messages_have_no_constructions_that_readers_stumble_over() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "crates", "tests"]
        .iter()
        .for_each(|folder| files_below(&root.join(folder), &mut files));
    let (mut wrong, mut read) = (Vec::new(), 0);
    for path in files {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let is_source = !name.starts_with("tests/") && name.ends_with(".rs");
        let is_of_messages = name.ends_with(".snap")
            && !name.contains("__rendered__")
            && !name.contains("__feature_");
        let is_left_out =
            is_source && (name.contains("/tests") || name.starts_with("crates/native/"));
        if is_left_out || !(is_source || is_of_messages) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let said = if is_source {
            literals(&text)
        } else {
            text.lines().map(str::to_owned).collect()
        };
        read += said.len();
        let found = said.iter().filter_map(|said| Some((said, stumble(said)?)));
        wrong.extend(found.map(|(said, (words, better))| {
            format!("{name}: \"{words}\" (say {better}) in: {said}")
        }));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 3000, "only {read} texts were read");
    for (said, is_bad) in [
        ("a.json is no baseline", true),
        ("there is no baseline", false),
        ("it is no longer there", false),
    ] {
        assert_eq!(stumble(said).is_some(), is_bad, "{said}");
    }
    assert_eq!(
        literals("f(\"a\"); // \"b\"\n'\"' \"c\\\"d\""),
        ["a", "c\"d"]
    );
}
