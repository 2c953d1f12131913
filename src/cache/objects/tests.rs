use super::*;

fn cache() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache")).unwrap();
    (folder, cache)
}

/// Bytes that zstd cannot shrink.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

fn stored_size(cache: &Cache, digest: &Digest) -> u64 {
    fs::metadata(cache.object_path(digest)).unwrap().len()
}

#[test]
fn an_object_that_is_larger_than_memory_is_an_error_that_says_so() {
    let (_folder, cache) = cache();
    let bytes = vec![7; 3 << 20];
    let digest = cache.put(&bytes, Durability::Plain).unwrap();
    assert!(stored_size(&cache, &digest) < 1 << 12, "a bomb");
    let error = cache.get_at_most(&digest, 1 << 20).unwrap_err().to_string();
    assert!(error.contains("larger than 1 MiB"), "{error}");
    assert!(cache.has(&digest), "it may be a log that somebody needs");
    assert_eq!(
        cache.get_at_most(&digest, 3 << 20).unwrap().as_deref(),
        Some(&bytes[..])
    );
    assert_eq!(
        cache.get_at_most(&digest, 4 << 20).unwrap().as_deref(),
        Some(&bytes[..])
    );
}

#[test]
fn a_private_file_is_stored_for_its_owner_alone() {
    let (folder, cache) = cache();
    for (mode, large) in [(0o600, false), (0o600, true), (0o644, false)] {
        let path = folder.path().join(format!("{mode}-{large}"));
        let bytes = noise(if large { 3 << 20 } else { 100 + mode as usize });
        files::write_atomically(&path, &bytes, Durability::Plain).unwrap();
        fchmod(File::open(&path).unwrap(), Mode::from_bits_truncate(mode)).unwrap();
        let (digest, _) = cache.put_file(&path, Durability::Plain).unwrap();
        let stored = fs::metadata(cache.object_path(&digest)).unwrap().mode() & 0o777;
        assert_eq!(stored & !mode, 0, "{stored:o} of {mode:o}");
        assert_eq!(stored & 0o400, 0o400);
    }
}

#[test]
fn bytes_and_files_come_back() {
    let (folder, cache) = cache();
    let magic = [&ZSTD_MAGIC[..], &noise(100)].concat();
    let large_magic = [&ZSTD_MAGIC[..], &noise(3 << 20)].concat();
    let log = "step 1 loss 2.0\n".repeat(200_000).into_bytes();
    for bytes in [
        vec![],
        b"small".to_vec(),
        noise(5000),
        noise(WORTH_COMPRESSING),
        noise(3 << 20),
        magic,
        large_magic,
        log,
    ] {
        let path = folder.path().join("file");
        files::write_atomically(&path, &bytes, Durability::Plain).unwrap();
        let (digest, size) = cache.put_file(&path, Durability::Synced).unwrap();
        assert_eq!((digest, size), (Digest::of(&bytes), bytes.len() as u64));
        assert!(cache.has(&digest));
        assert_eq!(cache.get(&digest).unwrap().unwrap(), bytes);
        fs::remove_file(cache.object_path(&digest)).unwrap();
        assert_eq!(
            (cache.has(&digest), cache.get(&digest).unwrap()),
            (false, None)
        );

        assert_eq!(cache.put(&bytes, Durability::Plain).unwrap(), digest);
        assert_eq!(cache.get(&digest).unwrap().unwrap(), bytes);
    }
    assert_eq!(
        fs::read_dir(cache.root.join("tmp")).unwrap().count(),
        0,
        "nothing temporary is left"
    );
}

#[test]
fn compresses_what_is_larger_than_a_block_and_nothing_else() {
    let (_folder, cache) = cache();
    let log = b"loss 2.0\n".repeat(10_000);
    assert!(
        stored_size(&cache, &cache.put(&log, Durability::Plain).unwrap()) < log.len() as u64 / 10
    );
    assert_eq!(
        stored_size(
            &cache,
            &cache.put(&[b'x'; 4000], Durability::Plain).unwrap()
        ),
        4000
    );
}

#[test]
fn a_folder_in_the_place_of_an_object_is_no_object() {
    let (folder, cache) = cache();
    let digest = Digest::of("object");
    let path = cache.object_path(&digest);
    files::create_dir_all(&path).unwrap();
    assert_eq!(
        (cache.has(&digest), cache.get(&digest).unwrap()),
        (false, None)
    );
    assert_eq!(cache.put(b"object", Durability::Plain).unwrap(), digest);
    assert!(cache.has(&digest));
    // One with something in it is somebody's.
    fs::remove_file(&path).unwrap();
    files::create_dir_all(&path.join("thesis")).unwrap();
    assert!(
        cache
            .put(b"object", Durability::Plain)
            .unwrap_err()
            .to_string()
            .contains("is a folder where the cache")
    );
    files::create_dir_all(&folder.path().join("cache/segments/0009-x.seg")).unwrap();
    Cache::open(&folder.path().join("cache"))
        .unwrap()
        .record_preimage("text")
        .unwrap();
}

#[test]
fn a_stored_object_is_not_written_again() {
    let (_folder, cache) = cache();
    let digest = cache.put(b"once", Durability::Plain).unwrap();
    let inode = || fs::metadata(cache.object_path(&digest)).unwrap().ino();
    let before = inode();
    cache.put(b"once", Durability::Synced).unwrap();
    assert_eq!(inode(), before);
}

#[test]
fn a_damaged_object_is_left_counts_as_missing_and_can_be_stored_again() {
    let (_folder, cache) = cache();
    for bytes in [b"plain".to_vec(), b"packed ".repeat(5000)] {
        let digest = cache.put(&bytes, Durability::Plain).unwrap();
        let damage = |change: fn(&mut Vec<u8>)| {
            let path = cache.object_path(&digest);
            let mut stored = fs::read(&path).unwrap();
            change(&mut stored);
            fs::remove_file(&path).unwrap();
            files::write_atomically(&path, &stored, Durability::Plain).unwrap();
        };
        let changes: [fn(&mut Vec<u8>); 4] = [
            |b| b.truncate(b.len() - 1),
            |b| b.push(0),
            |b| *b.last_mut().unwrap() ^= 1,
            Vec::clear,
        ];
        for change in changes {
            damage(change);
            let mut reader = cache.reader(&digest).unwrap().unwrap();
            let error = io::copy(&mut reader, &mut io::sink()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            let stored = fs::read(cache.object_path(&digest)).unwrap();
            assert_eq!(cache.get(&digest).unwrap(), None);
            assert!(!cache.has(&digest));
            assert!(!cache.stream(&digest, |_| Ok(())).unwrap());
            assert!(!cache.is_sound(&digest).unwrap());
            assert_eq!(fs::read(cache.object_path(&digest)).unwrap(), stored);
            cache.put(&bytes, Durability::Plain).unwrap();
            damage(change);
            cache.put(&bytes, Durability::Plain).unwrap();
            assert_eq!(
                cache.get(&digest).unwrap().as_deref(),
                Some(&bytes[..]),
                "a put repairs"
            );
            assert!(cache.has(&digest));
        }
    }
}

#[test]
fn an_object_that_is_left_half_read_or_damaged_does_not_show_in_the_next_one() {
    let (_folder, cache) = cache();
    let texts = ["one", "two", "three"].map(|word| format!("{word} ").repeat(50_000));
    let digests = texts
        .each_ref()
        .map(|text| cache.put(text.as_bytes(), Durability::Plain).unwrap());
    // Its context is kept for the next object.
    let mut reader = cache.reader(&digests[0]).unwrap().unwrap();
    reader.read_exact(&mut [0; 10]).unwrap();
    drop(reader);
    let path = cache.object_path(&digests[1]);
    let packed = fs::read(&path).unwrap();
    files::write_atomically(&path, &packed[..packed.len() / 2], Durability::Plain).unwrap();
    assert_eq!(cache.get(&digests[1]).unwrap(), None, "it is cut short");
    for at in [2, 0, 2] {
        let read = cache.get(&digests[at]).unwrap().unwrap();
        assert!(read == texts[at].as_bytes(), "{at}");
    }
}
