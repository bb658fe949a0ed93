//! Valid and invalid folders, lists and archives.

use std::fs;
use std::path::{Path, PathBuf};

use sidestream_images::Broken;
use sidestream_images::source::{Dataset, samples, write_samples};

use crate::pictures::{Draw, Jpeg};

/// Returns an empty folder for one test.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("images-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn put(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Returns names relative to the folder, and labels.
fn listed(data: &Dataset, root: &Path) -> Vec<(String, Option<u32>)> {
    let short = |name: String| {
        name.replace(&format!("{}", root.display()), "")
            .trim_start_matches('/')
            .to_string()
    };
    (0..data.len())
        .map(|sample| (short(data.name(sample)), data.label(sample)))
        .collect()
}

fn refused(opened: sidestream_images::Result<Dataset>) -> String {
    opened.map(|data| data.len()).unwrap_err().to_string()
}

#[test]
fn a_folder_gives_a_class_for_each_sub_folder() {
    let root = folder("classes");
    for name in [
        "dog/b.JPG",
        "dog/a.png",
        "cat/deep/c.jpeg",
        "cat/.hidden.jpg",
        "cat/notes.txt",
        "ant/x.jfif",
    ] {
        put(&root, name, b"bytes");
    }
    let data = Dataset::folder(&root).unwrap();
    assert_eq!(data.classes(), ["ant", "cat", "dog"]);
    let expected = [
        ("ant/x.jfif", 0),
        ("cat/deep/c.jpeg", 1),
        ("dog/a.png", 2),
        ("dog/b.JPG", 2),
    ];
    assert_eq!(
        listed(&data, &root),
        expected.map(|(name, label)| (name.to_string(), Some(label)))
    );
    let mut bytes = vec![1, 2];
    data.read(3, &mut bytes).unwrap();
    assert_eq!(bytes, b"bytes");

    let own = Dataset::folder_of_classes(&root, &["dog", "ant"]).unwrap();
    let expected = [("dog/a.png", 0), ("dog/b.JPG", 0), ("ant/x.jfif", 1)];
    assert_eq!(
        listed(&own, &root),
        expected.map(|(name, label)| (name.to_string(), Some(label)))
    );
    assert_ne!(own.identity(), data.identity());
    assert_eq!(data.identity(), Dataset::folder(&root).unwrap().identity());
    assert!(
        refused(Dataset::folder_of_classes(&root, &["cow"]))
            .contains("there is no sub-folder `cow`")
    );
    assert!(refused(Dataset::folder_of_classes(&root, &["cat", "cat"])).contains("named twice"));

    put(&root, "lost.jpg", b"");
    assert!(refused(Dataset::folder(&root)).contains("`lost.jpg` is outside the folders"));
}

#[test]
fn a_folder_without_folders_has_no_labels() {
    let root = folder("flat");
    put(&root, "b.jpg", b"");
    put(&root, "a.jpg", b"");
    let data = Dataset::open(&root).unwrap();
    assert_eq!(
        listed(&data, &root),
        [("a.jpg".into(), None), ("b.jpg".into(), None)]
    );
    assert!(refused(Dataset::folder(folder("empty"))).contains("there are no pictures"));
    assert!(refused(Dataset::open(root.join("none"))).contains("none: "));
}

#[test]
fn links_are_followed_but_not_in_circles() {
    let root = folder("links");
    put(&root, "a/1.jpg", b"");
    std::os::unix::fs::symlink(root.join("a"), root.join("b")).unwrap();
    assert_eq!(Dataset::folder(&root).unwrap().len(), 2);
    std::os::unix::fs::symlink(&root, root.join("a/up")).unwrap();
    assert!(
        refused(Dataset::folder(&root)).contains("loop"),
        "{}",
        refused(Dataset::folder(&root))
    );
}

#[test]
fn a_link_to_nothing_is_one_broken_picture() {
    let root = folder("broken-links");
    put(&root, "a/2.jpg", b"bytes");
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, root.join(name)).unwrap();
    };
    link("1.jpg", "a/1.jpg");
    link("gone", "a/3.jpg");
    link("self", "a/self");
    link("there", "a/back");
    link("back", "a/there");
    link("user@host:1", "a/.#lock.jpg");
    link("nowhere", ".hidden");
    let data = Dataset::folder(&root).unwrap();
    let names = listed(&data, &root).into_iter().map(|(name, _)| name);
    assert_eq!(names.collect::<Vec<_>>(), ["a/1.jpg", "a/2.jpg", "a/3.jpg"]);
    let mut bytes = Vec::new();
    data.read(1, &mut bytes).unwrap();
    for lost in [0, 2] {
        let why = data.read(lost, &mut bytes).unwrap_err();
        assert!(matches!(why, Broken::Unreadable(_)), "{why}");
    }
    // A link that may be a folder on a disk that is not mounted is not dropped silently.
    link("/mnt/gone", "a/more");
    let why = refused(Dataset::folder(&root));
    assert!(
        why.ends_with("a/more: it is a link that leads to nothing; fix or remove it"),
        "{why}"
    );
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let root = folder("pipes");
    for name in ["pipe", "pipe.tar"] {
        let pipe = root.join(name);
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let says = "it is a pipe or a device, and samples are read from places in files; save it as a file first";
        for opened in [
            Dataset::open(&pipe),
            Dataset::list(&pipe),
            Dataset::shards(&[&pipe]),
        ] {
            assert!(refused(opened).ends_with(says));
        }
    }
}

#[test]
fn a_list_names_paths_and_labels() {
    let root = folder("list");
    let list = |text: &str| {
        put(&root, "list.csv", text.as_bytes());
        Dataset::list(root.join("list.csv"))
    };
    let data = list("\u{feff}a.jpg, 3\r\n\r\nsub/with, comma.jpg,0\n/abs/c.png,12").unwrap();
    let expected = [("a.jpg", 3), ("sub/with, comma.jpg", 0), ("abs/c.png", 12)];
    assert_eq!(
        listed(&data, &root),
        expected.map(|(name, label)| (name.to_string(), Some(label)))
    );
    assert_eq!(
        listed(&list("a, b.jpg\n").unwrap(), &root),
        [("a, b.jpg".into(), None)]
    );

    // The text after a comma belongs to the path if the whole line ends as a picture does, and if neither part does.
    let paths = ["a.jpg,b.png", "folder,of/words"];
    assert_eq!(
        listed(&list(&paths.join("\n")).unwrap(), &root),
        paths.map(|path| (path.to_string(), None))
    );
    let number = "a whole number from 0 to 4294967294 is expected; number the classes";
    for (text, says) in [
        (
            "a.jpg,1\nb.jpg\n",
            "list.csv:2: `b.jpg` has no label, and line 1 has one; write `path,label` into every line",
        ),
        (
            "path,label\n\na.jpg,1\n",
            "list.csv:3: this line has a label, and line 1, `path,label`, has none",
        ),
        (
            "a.jpg,cat\n",
            "list.csv:1: `cat` is not a label: after the last comma",
        ),
        ("a.jpg,1\nb.jpg,99999999999\n", number),
        ("a.jpg,4294967295\n", number),
        ("a.jpg,-1\n", "`-1` is not a label"),
        ("a.jpg,1.5\n", "`1.5` is not a label"),
        ("picture,+1\n", "`+1` is not a label"),
        ("a.jpg,\n", "`` is not a label"),
    ] {
        let why = refused(list(text));
        assert!(why.contains(says), "{text:?}: {why}");
    }
    assert!(refused(list("")).contains("there are no pictures"));
    assert!(
        refused(list(&"x".repeat(70_000)))
            .contains("list.csv:1: the line has more than 65536 bytes")
    );
    assert!(refused(list("a\0b")).contains("zero byte"));
    put(&root, "picture", &[0xFF, 0xD8, 0xFF, 0xE0]);
    assert!(
        refused(Dataset::open(root.join("picture")))
            .contains("picture: it is a picture; give the folder that it is in")
    );
    put(&root, "raw", &[0xFF, 0xD8, 0, 0xE0]);
    assert!(refused(Dataset::list(root.join("raw"))).contains("raw:1: the line is not UTF-8"));
}

/// Returns an archive with these members.
fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, *bytes).unwrap();
    }
    tar.into_inner().unwrap()
}

fn open_tar(root: &Path, bytes: &[u8]) -> sidestream_images::Result<Dataset> {
    put(root, "shard.tar", bytes);
    Dataset::open(root.join("shard.tar"))
}

#[test]
fn shards_give_a_sample_for_each_key() {
    let root = folder("shards");
    let long = format!("{}/0003.jpg", "folder".repeat(30));
    let first = tar(&[
        ("0001.jpg", b"one"),
        ("0001.cls", b" 7\n"),
        ("dir.v2/0002.json", br#"{"label": 5, "text": "x"}"#),
        ("dir.v2/0002.seg.png", b"no picture of it"),
        ("dir.v2/0002.jpeg", b"two"),
        ("words.txt", b"no sample"),
    ]);
    let second = tar(&[(&long, b"three"), (&long.replace("jpg", "cls"), b"0")]);
    put(&root, "1.tar", &first);
    put(&root, "2.tar", &second);
    let data = Dataset::shards(&[root.join("1.tar"), root.join("2.tar")]).unwrap();
    let expected = [
        ("1.tar: 0001.jpg", 7),
        ("1.tar: dir.v2/0002.jpeg", 5),
        (&*format!("2.tar: {long}"), 0),
    ];
    let expected = expected.map(|(name, label)| (name.to_string(), Some(label)));
    assert_eq!(listed(&data, &root), expected);
    let mut bytes = Vec::new();
    for (sample, content) in [(2, &b"three"[..]), (0, b"one"), (1, b"two")] {
        data.read(sample, &mut bytes).unwrap();
        assert_eq!(bytes, content);
    }
}

#[test]
fn names_of_pax_are_read() {
    let root = folder("pax");
    let mut builder = tar::Builder::new(Vec::new());
    builder
        .append_pax_extensions([("path", &b"new/name.jpg"[..])])
        .unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(3);
    header.set_path("old.jpg").unwrap();
    header.set_cksum();
    builder.append(&header, &b"abc"[..]).unwrap();
    let data = open_tar(&root, &builder.into_inner().unwrap()).unwrap();
    assert_eq!(
        listed(&data, &root),
        [("shard.tar: new/name.jpg".into(), None)]
    );
}

#[test]
fn a_member_with_holes_is_refused_in_each_form() {
    let root = folder("holes");
    let says = "after `b.jpg`: a member with holes; pack the archive without `--sparse`";
    let of = |kind: Option<tar::EntryType>| {
        let mut builder = tar::Builder::new(tar(&["b.jpg"].map(|name| (name, &b"b"[..]))));
        let mut bytes = std::mem::take(builder.get_mut());
        // Without the end-of-archive mark.
        bytes.truncate(1024);
        let mut builder = tar::Builder::new(bytes);
        if kind.is_none() {
            let records = [
                ("GNU.sparse.major", &b"1"[..]),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", b"a.jpg"),
                ("GNU.sparse.realsize", b"99999999999"),
            ];
            builder.append_pax_extensions(records).unwrap();
        }
        let mut header = tar::Header::new_gnu();
        header.set_path("GNUSparseFile.1/a.jpg").unwrap();
        header.set_entry_type(kind.unwrap_or(tar::EntryType::Regular));
        header.set_size(3);
        header.set_cksum();
        builder.append(&header, &b"abc"[..]).unwrap();
        refused(open_tar(&root, &builder.into_inner().unwrap()))
    };
    for kind in [None, Some(tar::EntryType::GNUSparse)] {
        let why = of(kind);
        assert!(why.ends_with(says), "{why}");
    }
}

#[test]
fn bad_archives_are_refused_with_the_member() {
    let root = folder("bad-tar");
    let why = |members: &[(&str, &[u8])]| refused(open_tar(&root, &tar(members)));
    assert!(
        why(&[("a.jpg", b""), ("a.png", b"")])
            .contains("`a.jpg` and `a.png` are two pictures of one sample")
    );
    assert!(
        why(&[("a.jpg", b""), ("b.jpg", b""), ("a.cls", b"1")])
            .contains("the members of `a` do not follow each other")
    );
    let of_label = |name: &str, bytes: &[u8], says: &str| {
        let why = why(&[("a.jpg", b""), (name, bytes)]);
        assert!(why.contains(says), "{why}");
    };
    of_label(
        "a.cls",
        b"cat\n",
        "shard.tar: `a.cls` is not a label: it holds `cat`, and a whole number from 0 to 4294967294 is expected; number the classes",
    );
    of_label("a.cls", b"-1", "it holds `-1`, and");
    of_label("a.cls", b"4294967295", "it holds `4294967295`, and");
    of_label("a.cls", &[0xFF; 100], "it holds `����");
    of_label(
        "a.json",
        b"{\n  label: 3}",
        "`a.json` is not a label: it is not JSON: there is an error at line 2, column 3; write an object such as {\"label\": 3}",
    );
    of_label(
        "a.json",
        br#"{"label": "cat"}"#,
        r#"its `label` is `"cat"`, and a whole number"#,
    );
    of_label("a.json", br#"{"cls": 1.5}"#, "its `cls` is `1.5`, and");
    assert!(why(&[("a.txt", b"")]).contains("there are no pictures"));
    assert!(
        why(&[("a.jpg", b""), ("a.cls", b"1"), ("b.jpg", b"")])
            .contains("1 of 2 samples have no label")
    );
    assert!(refused(Dataset::shards(&[] as &[&str])).contains("no archive is named"));
    assert!(refused(Dataset::shards(&[&root])).contains("it is a folder; where several"));
}

#[test]
fn a_compressed_file_is_recognised_whatever_its_name() {
    let root = folder("compressed");
    for (name, begins, says) in [
        (
            "shard.tar",
            &[0x1F, 0x8B, 8, 0][..],
            "by `gunzip < shard.tar > unpacked.tar`",
        ),
        (
            "shard.tar.gz",
            &[0x1F, 0x8B, 8, 0],
            "by `gunzip shard.tar.gz`",
        ),
        ("shard.tgz", &[0x1F, 0x8B], "by `gunzip shard.tgz`"),
        (
            "shard.tar.zst",
            &[0x28, 0xB5, 0x2F, 0xFD, 0],
            "by `unzstd shard.tar.zst`",
        ),
        ("shard.tar.xz", b"\xFD7zXZ\0", "by `unxz shard.tar.xz`"),
        ("shard.tar.bz2", b"BZh91AY", "by `bunzip2 shard.tar.bz2`"),
        ("pictures.zip", b"PK\x03\x04", "by `unzip pictures.zip`"),
    ] {
        put(&root, name, begins);
        let why = refused(Dataset::open(root.join(name)));
        assert!(
            why.contains(&format!("{name}: it is compressed as a whole")),
            "{why}"
        );
        assert!(
            why.contains(says) && why.contains("WebDataset's shards are not compressed"),
            "{why}"
        );
        assert_eq!(why, refused(Dataset::shards(&[root.join(name)])));
    }
}

#[test]
fn an_archive_that_was_cut_or_changed_never_panics_and_rarely_passes() {
    let root = folder("mutated-tar");
    let long = format!("{}.jpg", "n".repeat(150));
    let good = tar(&[
        ("a.jpg", &[7; 700]),
        ("a.cls", b"1"),
        (&long, &[8; 100]),
        (&long.replace("jpg", "cls"), b"2"),
    ]);
    assert_eq!(open_tar(&root, &good).unwrap().len(), 2);
    // Two blocks of zeros end an archive; the second is only for old tape drives.
    for length in (0..good.len() - 1024).step_by(64) {
        assert!(
            open_tar(&root, &good[..length]).is_err(),
            "{length} of {}",
            good.len()
        );
    }
    let mut draw = Draw::new(3);
    for round in 0..400 {
        let mut bytes = good.clone();
        // The changes are mostly in headers, since the members are small.
        for _ in 0..1 + draw.below(3) {
            let at = draw.below(bytes.len() as u64) as usize;
            bytes[at] = draw.next() as u8;
        }
        if let Ok(data) = open_tar(&root, &bytes) {
            let mut into = Vec::new();
            for sample in 0..data.len() {
                data.read(sample, &mut into)
                    .unwrap_or_else(|why| panic!("{round}: {why}"));
            }
        }
    }
}

#[test]
fn long_files_and_lost_ones_are_broken_pictures() {
    let root = folder("long");
    put(&root, "a.jpg", &[0; 100]);
    put(&root, "b.jpg", b"");
    let data = Dataset::folder(&root).unwrap().with_max_file_bytes(99);
    let mut bytes = Vec::new();
    let long = Broken::TooLong {
        size_bytes: 100,
        max_bytes: 99,
    };
    assert_eq!(data.read(0, &mut bytes), Err(long));
    fs::remove_file(root.join("b.jpg")).unwrap();
    assert!(matches!(
        data.read(1, &mut bytes),
        Err(Broken::Unreadable(_))
    ));
    fs::create_dir(root.join("b.jpg")).unwrap();
    assert_eq!(
        data.read(1, &mut bytes),
        Err(Broken::Unreadable("it is not a file".into()))
    );
    let file = tar(&[("a.jpg", &[0; 100])]);
    let data = open_tar(&root, &file).unwrap().with_max_file_bytes(99);
    assert!(matches!(
        data.read(0, &mut bytes),
        Err(Broken::TooLong { .. })
    ));
}

#[test]
fn sample_pictures_are_many_small_and_good() {
    let all = samples(1);
    assert_eq!(all.len(), 40);
    let bytes: usize = all.iter().map(|sample| sample.bytes.len()).sum();
    assert!((200_000..900_000).contains(&bytes), "{bytes} bytes");
    let root = folder("samples");
    write_samples(&root, 1).unwrap();
    let data = Dataset::folder(&root).unwrap();
    assert_eq!(
        (data.len(), data.classes()),
        (
            40,
            &["city", "flowers", "hills", "sea"].map(String::from)[..]
        )
    );
    let mut bytes = Vec::new();
    data.read(17, &mut bytes).unwrap();
    assert!(bytes == all[17].bytes);
    // The test pictures of other files are encoded by the same library; the sample pictures have texture.
    assert!(
        all[0].bytes.len()
            > Jpeg::default()
                .encode(all[0].size.width, all[0].size.height)
                .len()
    );
}
