use std::cell::RefCell;
use std::fs;
use std::sync::atomic::AtomicUsize;

use holdall_files::Existing;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::config::Share;
use crate::table::cleaned_names;

/// A picture of random blocks; pictures of different numbers are no near copies.
fn blocks(width: u32, height: u32, number: u8) -> image::RgbImage {
    image::RgbImage::from_fn(width, height, |x, y| {
        let block = [number, (8 * x / width) as u8, (8 * y / height) as u8];
        let [red, green, blue, ..] = xxhash_rust::xxh3::xxh3_64(&block).to_le_bytes();
        image::Rgb([red, green, blue])
    })
}

fn png(width: u32, height: u32, number: u8) -> Vec<u8> {
    let image = blocks(width, height, number);
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn config(&self, csv: &[u8]) -> CheckConfig {
        CheckConfig {
            csv: self.write("cars.csv", csv),
            data: DataConfig {
                max_skipped: Share(0.0),
                validation: Validation::None,
                ..DataConfig::default()
            },
            media: crate::media::Media::Pictures,
            min_frames: 1,
            captions: crate::samples::Captions::Required,
            seed: 0,
            min_size: MIN_SIZE,
            max_aspect: MAX_ASPECT,
            min_per_label: MIN_PER_LABEL,
            num_examples: 3,
            num_workers: Some(2),
            allowance: crate::decode::Allowance::unlimited(),
        }
    }
}

#[test]
fn groups_on_both_sides_are_found() {
    let folder = Folder::new();
    let csv = "image,caption,split,patient\n1.jpg,a,train,p\n2.jpg,b,val,p\n3.jpg,c,val,q\n,d,val,p\n4.jpg,e,train,\n5.jpg,f,val,\n";
    for (name, seed) in [
        ("1.jpg", 1),
        ("2.jpg", 2),
        ("3.jpg", 3),
        ("4.jpg", 4),
        ("5.jpg", 5),
    ] {
        folder.write(name, &png(40, 40, seed));
    }
    let mut config = folder.config(csv.as_bytes());
    let group = Some("patient".to_owned());
    // The columns are recognised by their names.
    let report = checked(&config);
    let leaks = |report: &Report| {
        found(report)
            .into_iter()
            .filter(|(kind, _)| kind == "group_leak")
            .collect::<Vec<_>>()
    };
    assert_eq!(leaks(&report), [("group_leak".to_owned(), vec![3])]);
    let path = folder.write(
        "val.csv",
        b"image,caption,patient\n3.jpg,a,q\n,x,q\n5.jpg,b,p\n4.jpg,b,\n",
    );
    // Neither the column's name nor its values look like a split.
    let plain = csv
        .replace("split", "eye")
        .replace("val,", "left,")
        .replace("train,", "right,");
    config.csv = folder.write("plain.csv", plain.as_bytes());
    config.data.validation = Validation::File { path, group };
    let report = checked(&config);
    let leak = report
        .findings
        .iter()
        .find(|finding| finding.kind == Fault::Row(RowKind::GroupLeak))
        .unwrap();
    assert_eq!(
        (leak.rows.clone(), leak.validation_rows.clone()),
        (vec![], vec![2, 4])
    );
}

#[test]
fn class_folders_are_checked_and_not_cleaned() {
    let folder = Folder::new();
    for (name, seed) in [
        ("a/1.png", 1),
        ("a/2.png", 2),
        ("b/1.png", 1),
        ("b/3.png", 3),
    ] {
        fs::create_dir_all(folder.0.path().join(name).parent().unwrap()).unwrap();
        folder.write(name, &png(40, 40, seed));
    }
    folder.write("b/4.png", b"no picture");
    let mut config = folder.config(b"image,caption\n");
    config.csv = folder.0.path().to_owned();
    config.captions = crate::samples::Captions::None;
    let report = checked(&config);
    assert_eq!(
        found(&report),
        [
            ("not_an_image".to_owned(), vec![5]),
            ("two_labels".to_owned(), vec![1, 3])
        ]
    );
    assert_eq!(
        (report.labels.unwrap().count, report.captions.different),
        (2, 0)
    );
    let error = clean(
        &config,
        Copies::default(),
        Existing::Replace,
        Watch {
            stop: &AtomicBool::new(false),
            on_start: &mut |_| {},
            on_progress: &|_| {},
            on_note: &mut |_| {},
        },
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("expected a CSV or JSON lines to clean, found class folders"),
        "{error}"
    );
}

fn watched<T>(
    stop_after: usize,
    run: impl FnOnce(Watch<'_>) -> Result<Outcome<T>, DataError>,
) -> (Outcome<T>, Vec<String>) {
    let stop = AtomicBool::new(stop_after == 0);
    let num_done = AtomicUsize::new(0);
    let notes = RefCell::new(Vec::new());
    let outcome = run(Watch {
        stop: &stop,
        on_start: &mut |_| {},
        on_progress: &|rows| {
            let before = num_done.fetch_add(rows, std::sync::atomic::Ordering::Relaxed);
            if before + rows >= stop_after {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        },
        on_note: &mut |note| notes.borrow_mut().push(note.to_owned()),
    });
    (outcome.unwrap(), notes.into_inner())
}

fn done<T>(outcome: Outcome<T>) -> T {
    match outcome {
        Outcome::Done(done) => done,
        Outcome::Stopped { .. } => panic!("stopped"),
    }
}

fn checked(config: &CheckConfig) -> Report {
    done(watched(usize::MAX, |watch| check(config, watch)).0)
}

fn cleaned(config: &CheckConfig, duplicates: Duplicates) -> Cleaned {
    let copies = Copies {
        duplicates,
        ..Copies::default()
    };
    let clean = |watch: Watch<'_>| clean(config, copies, Existing::Replace, watch);
    done(watched(usize::MAX, clean).0)
}

/// Findings by their name in JSON, with their line numbers.
fn found(report: &Report) -> Vec<(String, Vec<u32>)> {
    let name = |finding: &Finding| {
        let name = serde_json::to_value(finding.kind).unwrap();
        name.as_str().unwrap().to_owned()
    };
    let findings = report.findings.iter();
    findings.map(|f| (name(f), f.rows.clone())).collect()
}

/// One row of each defect, from line 2 on.
fn one_of_each() -> (Folder, CheckConfig) {
    let folder = Folder::new();
    let good = png(40, 40, 1);
    folder.write("good.png", &good);
    folder.write("copy.png", &good);
    folder.write("empty.jpg", b"");
    folder.write("page.jpg", b"<html>404</html>");
    folder.write("cut.png", &good[..good.len() / 2]);
    let mut broken = good.clone();
    broken[40..60].fill(0);
    folder.write("broken.png", &broken);
    // A header that declares 60,000 x 60,000 pixels.
    let mut bomb = png(1, 1, 0);
    bomb[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    let checksum = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&checksum.to_be_bytes());
    folder.write("bomb.png", &bomb);
    folder.write("tiny.png", &png(15, 300, 2));
    folder.write("line.png", &png(20, 401, 3));
    folder.write("other.png", &png(40, 40, 4));
    folder.write("silent.png", &png(40, 40, 5));
    let csv = "image,caption\n\
               good.png,a\nnowhere.png,b\nempty.jpg,c\npage.jpg,d\ncut.png,e\nbroken.png,f\nbomb.png,g\n\
               ,h\nsilent.png, \ncopy.png,i\ntiny.png,j\nline.png,k\nother.png,l\nother.png,m\nother.png,m\n";
    let config = folder.config(csv.as_bytes());
    (folder, config)
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn every_defect_is_found_under_its_name() {
    let (folder, config) = one_of_each();
    let before = fs::read(&config.csv).unwrap();
    let report = checked(&config);
    let expected = [
        ("unnamed", 9),
        ("missing", 3),
        ("zero_size", 4),
        ("not_an_image", 5),
        ("cut_short", 6),
        ("broken", 7),
        ("too_many_pixels", 8),
        ("empty_caption", 10),
        ("duplicate", 11),
        ("too_small", 12),
        ("too_narrow", 13),
    ];
    let mut expected: Vec<(String, Vec<u32>)> = expected
        .map(|(name, row)| (name.to_owned(), vec![row]))
        .into();
    // The same bytes under another name and a repeated pair are duplicates; the same picture with another caption is not.
    expected[8].1.push(16);
    assert_eq!(found(&report), expected);
    assert_eq!((report.rows, report.usable_rows), (15, 7));
    let bomb = &report.findings[6].examples[0];
    assert_eq!(bomb.detail.as_deref(), Some("60000 x 60000"));
    let copy = &report.findings[8].examples[0];
    assert_eq!(copy.image, "copy.png");
    assert_eq!(copy.detail.as_deref(), Some("as row 2"));
    assert_eq!(fs::read(&config.csv).unwrap(), before);
    assert!(!folder.0.path().join(".cars.csv.check").exists());
}

/// Rows that training skips are the rows that a check calls unusable and that cleaning removes.
#[test]
fn training_check_and_clean_agree_on_bad_rows() {
    let folder = Folder::new();
    let mut csv = "image,caption,make\n".to_owned();
    for at in 0..12 {
        folder.write(&format!("{at}.png"), &png(40, 40, at));
        csv += &format!(
            "{at}.png,car {at},{}\n",
            ["Ford", "Audi"][usize::from(at) % 2]
        );
        csv += match at {
            2 => "2.png,,Ford\n",
            4 => ",a,Audi\n",
            6 => "6.png,a, car,Ford\n",
            8 => "8.png\n",
            9 => ",,Seat\n",
            _ => "",
        };
    }
    let mut config = folder.config(csv.as_bytes());
    config.data.label = Some("make".into());
    config.data.validation = Validation::share(0.25);
    config.data.max_skipped = Share(0.5);
    config.data.train = Some(config.csv.clone());
    let read = |csv: &PathBuf| {
        let data = DataConfig {
            train: Some(csv.clone()),
            ..config.data.clone()
        };
        crate::samples::read(&data, Captions::Required, 0).unwrap()
    };
    let dirty = read(&config.csv);
    let skipped: Vec<u32> = dirty.bad_rows.iter().map(|bad| bad.row).collect();
    assert_eq!(skipped, [5, 8, 11, 14, 16]);
    let report = checked(&config);
    let mut unusable: Vec<u32> = found(&report)
        .into_iter()
        .filter(|(name, _)| ["unnamed", "empty_caption", "wrong_fields"].contains(&&**name))
        .flat_map(|(_, rows)| rows)
        .collect();
    unusable.sort_unstable();
    unusable.dedup();
    assert_eq!(unusable, skipped);
    assert_eq!(report.usable_rows, 12);
    let cleaned = cleaned(&config, Duplicates::Keep);
    let gone = cleaned.cleaned.gone.iter().flat_map(|gone| &gone.rows);
    let mut gone: Vec<u32> = gone.copied().collect();
    gone.sort_unstable();
    assert_eq!(gone, skipped);
    let clean = read(&cleaned.cleaned.path);
    assert!(clean.bad_rows.is_empty());
    assert_eq!(clean.labels, dirty.labels);
    let sides = |data: &crate::samples::DataSet| {
        [&data.train, data.validation.as_ref().unwrap()].map(|samples| {
            let samples =
                (0..samples.len()).map(|at| (samples.image(at).to_owned(), samples.label(at)));
            samples.collect::<Vec<_>>()
        })
    };
    assert_eq!(sides(&clean), sides(&dirty));
}

#[test]
fn clean_writes_what_can_be_read_and_what_is_wanted() {
    let (_folder, config) = one_of_each();
    let before = fs::read(&config.csv).unwrap();
    let written = cleaned(&config, Duplicates::KeepFirst);
    let read = |file: &CleanFile| fs::read_to_string(&file.path).unwrap();
    assert_eq!(
        read(&written.cleaned),
        "image,caption\ngood.png,a\ncopy.png,i\ntiny.png,j\nline.png,k\nother.png,l\nother.png,m\nother.png,m\n"
    );
    assert_eq!(
        read(&written.filtered),
        "image,caption\ngood.png,a\nother.png,l\nother.png,m\n"
    );
    assert_eq!((written.cleaned.rows, written.filtered.rows), (7, 3));
    assert!(!written.cleaned.replaced);
    assert_eq!(fs::read(&config.csv).unwrap(), before);
    let again = cleaned(&config, Duplicates::Keep);
    assert!(again.cleaned.replaced);
    assert_eq!(again.filtered.rows, 5);
    // A check of the cleaned file finds nothing.
    let config = CheckConfig {
        csv: written.cleaned.path,
        ..config
    };
    let kinds: Vec<String> = found(&checked(&config)).into_iter().map(|f| f.0).collect();
    assert_eq!(kinds, ["duplicate", "too_small", "too_narrow"]);
    let error = clean(
        &config,
        Copies::default(),
        Existing::Replace,
        Watch {
            stop: &AtomicBool::new(false),
            on_start: &mut |_| {},
            on_progress: &|_| {},
            on_note: &mut |_| {},
        },
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("found the name of one that cleaning writes"),
        "{error}"
    );
}

#[test]
fn rows_are_copied_byte_for_byte() {
    let folder = Folder::new();
    folder.write("1.png", &png(20, 20, 1));
    folder.write("2.png", &png(20, 20, 2));
    let csv = b"\xef\xbb\xbf\"image\", caption ,note\r\n\"1.png\",\"two\r\nlines\", \"\"\"x\r\n\r\nno.png,b,\r\n2.png,c,\"\"";
    let config = folder.config(csv);
    let written = cleaned(&config, Duplicates::KeepFirst);
    assert_eq!(
        fs::read(written.cleaned.path).unwrap(),
        b"\xef\xbb\xbf\"image\", caption ,note\r\n\"1.png\",\"two\r\nlines\", \"\"\"x\r\n2.png,c,\"\"\r\n"
    );
}

#[test]
fn labels_with_too_few_pictures() {
    let folder = Folder::new();
    let mut csv = "image,make,caption\n".to_owned();
    for (at, make) in ["Ford", "Ford", "Audi", "Audi", "BMW", ""]
        .iter()
        .enumerate()
    {
        folder.write(&format!("{at}.png"), &png(20, 20, at as u8));
        csv += &format!("{at}.png,{make},a {make} {at}\n");
    }
    let mut config = folder.config(csv.as_bytes());
    config.data.label = Some("make".into());
    let report = checked(&config);
    assert_eq!(
        found(&report),
        [
            ("few_of_label".to_owned(), vec![6]),
            ("empty_label".to_owned(), vec![7])
        ]
    );
    assert_eq!(report.labels.unwrap().few, [("BMW".to_owned(), 1)]);
    let detail = report.findings[0].examples[0].detail.as_deref();
    assert_eq!(detail, Some("1 label: BMW"));
    let written = cleaned(&config, Duplicates::KeepFirst);
    assert_eq!((written.cleaned.rows, written.filtered.rows), (6, 5));
    // One unreadable picture more, and Audi goes as well: rows per label are counted after unreadable rows are removed.
    fs::remove_file(folder.0.path().join("2.png")).unwrap();
    let written = cleaned(&config, Duplicates::KeepFirst);
    assert_eq!((written.cleaned.rows, written.filtered.rows), (5, 3));
}

#[test]
fn leaks_are_told_apart_from_duplicates() {
    let folder = Folder::new();
    for at in 0..4 {
        folder.write(&format!("{at}.png"), &png(20, 20, at));
    }
    folder.write("copy.png", &png(20, 20, 0));
    let csv = "image,caption,split\n0.png,a,train\n1.png,b,train\ncopy.png,c,val\n2.png,d,val\n0.png,a,train\n";
    let mut config = folder.config(csv.as_bytes());
    config.data.validation = Validation::column("split");
    let report = checked(&config);
    assert_eq!(
        found(&report),
        [
            ("leak".to_owned(), vec![4]),
            ("duplicate".to_owned(), vec![6])
        ]
    );
    let written = cleaned(&config, Duplicates::KeepFirst);
    let text = fs::read_to_string(&written.filtered.path).unwrap();
    assert_eq!(
        text,
        "image,caption,split\n1.png,b,train\ncopy.png,c,val\n2.png,d,val\n"
    );

    let csv = "image,caption\n0.png,a\n1.png,b\n";
    let other = folder.write(
        "val.csv",
        b"image,caption\ncopy.png,a\n3.png,b\n3.png,b\nno.png,c\n",
    );
    let mut config = folder.config(csv.as_bytes());
    config.data.validation = Validation::file(other);
    let report = checked(&config);
    let kinds: Vec<String> = found(&report).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["missing", "leak", "duplicate"]);
    let leak = &report.findings[1];
    assert_eq!(
        (leak.rows.len(), leak.validation_rows.as_slice()),
        (0, &[2][..])
    );
    assert!(leak.examples[0].csv.ends_with("val.csv"));
    let detail = leak.examples[0].detail.as_deref().unwrap();
    assert!(
        detail.starts_with("as row 2 of ") && detail.ends_with("cars.csv"),
        "{detail}"
    );
    let written = cleaned(&config, Duplicates::KeepFirst);
    assert_eq!(written.filtered.gone[0].rows, [2]);
}

/// The check looks for leaks in the same validation rows that training holds out.
#[test]
fn the_split_of_training_is_used() {
    let folder = Folder::new();
    let mut csv = "image,caption\n".to_owned();
    for at in 0..20 {
        folder.write(&format!("{at}.png"), &png(20, 20, at / 2));
        csv += &format!("{at}.png,{at}\n");
    }
    let mut config = folder.config(csv.as_bytes());
    config.data.validation = Validation::share(0.25);
    config.data.train = Some(config.csv.clone());
    let data = crate::samples::read(&config.data, Captions::Required, 0).unwrap();
    let held = data.validation.unwrap();
    let held: Vec<u32> = (0..held.len()).map(|sample| held.row(sample)).collect();
    let partner = |row: u32| {
        if row.is_multiple_of(2) {
            row + 1
        } else {
            row - 1
        }
    };
    let leaks: Vec<u32> = held
        .iter()
        .copied()
        .filter(|row| !held.contains(&partner(*row)))
        .collect();
    assert_eq!(found(&checked(&config))[0], ("leak".to_owned(), leaks));
}

#[test]
fn one_caption_for_most_rows() {
    let folder = Folder::new();
    let mut csv = "image,caption\n".to_owned();
    for at in 0..4 {
        folder.write(&format!("{at}.png"), &png(20, 20, at));
        csv += &format!("{at}.png,{}\n", if at == 2 { "a dog" } else { "a car" });
    }
    let report = checked(&folder.config(csv.as_bytes()));
    assert_eq!(found(&report), [("same_caption".to_owned(), vec![2, 3, 5])]);
    assert_eq!(
        (report.captions.different, report.captions.commonest_rows),
        (2, 3)
    );
    assert_eq!(report.captions.identical_share, 0.75);
}

#[test]
fn a_check_that_was_stopped_goes_on_and_says_the_same() {
    let folder = Folder::new();
    let mut csv = "image,caption\n".to_owned();
    for at in 0..200u32 {
        let bytes = png(20, 20, (at % 150) as u8);
        let length = if at % 7 == 0 {
            bytes.len() / 2
        } else {
            bytes.len()
        };
        folder.write(&format!("{at}.png"), &bytes[..length]);
        csv += &format!("{at}.png,{at}\n");
    }
    let config = folder.config(csv.as_bytes());
    let whole = checked(&config);
    assert_eq!(whole.findings.len(), 2);
    let (outcome, _) = watched(90, |watch| check(&config, watch));
    let Outcome::Stopped {
        num_done,
        num_rows,
        is_kept,
    } = outcome
    else {
        panic!("not stopped");
    };
    assert!((90..200).contains(&num_done) && num_rows == 200 && is_kept);
    let journal = folder.0.path().join(".cars.csv.check");
    // The state after a kill in the middle of a line.
    let text = fs::read(&journal).unwrap();
    fs::write(&journal, &text[..text.len() - 3]).unwrap();
    let (outcome, notes) = watched(usize::MAX, |watch| check(&config, watch));
    let going_on = format!("Going on: {} pictures were looked at before", num_done - 1);
    assert!(notes.contains(&going_on), "{notes:?}");
    assert_eq!(done(outcome), whole);
    assert!(!journal.exists());
}

#[test]
fn nothing_is_written_where_nothing_is_left() {
    let folder = Folder::new();
    let config = folder.config(b"image,caption\nno.png,a\n");
    let watch = Watch {
        stop: &AtomicBool::new(false),
        on_start: &mut |_| {},
        on_progress: &|_| {},
        on_note: &mut |_| {},
    };
    let error = clean(&config, Copies::default(), Existing::Refuse, watch)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cleaning would remove every one of 1: missing"),
        "{error}"
    );
    assert!(cleaned_names(&config.csv).iter().all(|path| !path.exists()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every row is in the cleaned file or among the rows removed from it, and likewise for the filtered file.
    #[test]
    fn no_row_is_lost(rows in proptest::collection::vec((0usize..6, 0usize..4, 0usize..3), 1..30)) {
        let folder = Folder::new();
        let good = png(20, 20, 1);
        folder.write("good.png", &good);
        folder.write("copy.png", &good);
        folder.write("small.png", &png(4, 20, 2));
        folder.write("cut.png", &good[..60]);
        let images = ["good.png", "copy.png", "small.png", "cut.png", "no.png", ""];
        let captions = ["a", "\"b\nb\"", "\"c,\"\"c\"\"\"", ""];
        let mut csv = "image,caption,make\n".to_owned();
        for (image, caption, make) in &rows {
            csv += &format!("{},{},{}\n", images[*image], captions[*caption], ["x", "y", ""][*make]);
        }
        let mut config = folder.config(csv.as_bytes());
        config.data.label = Some("make".into());
        let outcome = clean(&config, Copies::default(), Existing::Refuse, Watch {
            stop: &AtomicBool::new(false),
            on_start: &mut |_| {},
            on_progress: &|_| {},
            on_note: &mut |_| {},
        });
        let Ok(outcome) = outcome else { return Ok(()); };
        let written = done(outcome);
        let num_gone = |file: &CleanFile| file.gone.iter().map(|gone| gone.rows.len()).sum::<usize>();
        prop_assert_eq!(written.cleaned.rows + num_gone(&written.cleaned), rows.len());
        prop_assert_eq!(written.filtered.rows + num_gone(&written.filtered), written.cleaned.rows);
        prop_assert_eq!(fs::read(&config.csv).unwrap(), csv.as_bytes());
        for file in [&written.cleaned, &written.filtered] {
            let table = crate::table::Table::open(&file.path).unwrap();
            let mut num_rows = 0;
            let mut rows = table.rows().unwrap();
            while rows.read().unwrap().is_some() {
                num_rows += 1;
            }
            prop_assert_eq!(num_rows, file.rows);
        }
    }
}

/// Null words are no captions and no labels; labels that differ in case or blanks are two spellings.
#[test]
fn words_for_nothing_and_two_spellings() {
    let folder = Folder::new();
    let mut csv = "image,caption,make\n".to_owned();
    let rows = [
        ("a red car", "Ford"),
        ("nan", "Ford"),
        ("None", "ford"),
        ("a blue car", "Alfa Romeo"),
        ("a green car", "alfa-romeo"),
        ("a null car", "NULL"),
        ("a black car", ""),
        ("a white car", "Alfa Romeo"),
        ("N/A", "Ford"),
        ("nancy", "Ford"),
    ];
    for (at, (caption, make)) in rows.iter().enumerate() {
        folder.write(&format!("{at}.png"), &png(40, 40, at as u8));
        csv += &format!("{at}.png,{caption},{make}\n");
    }
    let mut config = folder.config(csv.as_bytes());
    config.data.label = Some("make".into());
    config.min_per_label = 0;
    let report = checked(&config);
    let names: Vec<(String, Vec<u32>)> = found(&report);
    assert_eq!(
        names,
        [
            ("null_caption".to_owned(), vec![3, 4, 10]),
            ("null_label".to_owned(), vec![7]),
            ("empty_label".to_owned(), vec![8]),
            ("label_spelling".to_owned(), vec![4, 6]),
        ]
    );
    let details: Vec<&str> = report.findings[3].examples[0]
        .detail
        .iter()
        .map(String::as_str)
        .collect();
    assert_eq!(details, ["`Alfa Romeo` = `alfa-romeo`, `Ford` = `ford`"]);
    let on_clean: Vec<OnClean> = report
        .findings
        .iter()
        .map(|finding| finding.on_clean)
        .collect();
    assert_eq!(
        on_clean,
        [
            OnClean::Filtered,
            OnClean::Filtered,
            OnClean::Kept,
            OnClean::Kept
        ]
    );
    // Null cells of a template count too.
    config.data.caption = Some("a photo of a {make}".to_owned());
    assert_eq!(
        found(&checked(&config))[0],
        ("null_caption".to_owned(), vec![7])
    );
}

/// An unsupported format is reported as such, and a URL is not reported as missing.
#[test]
fn formats_and_addresses_by_name() {
    let folder = Folder::new();
    folder.write("1.png", &png(40, 40, 1));
    folder.write("2.heic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic");
    let csv = "image,caption\n1.png,a\n2.heic,b\nhttps://example.org/3.jpg,c\n";
    let config = folder.config(csv.as_bytes());
    let report = checked(&config);
    assert_eq!(
        found(&report),
        [
            ("remote".to_owned(), vec![4]),
            ("other_format".to_owned(), vec![3])
        ]
    );
}

fn jpeg(image: &image::RgbImage, quality: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, quality)
        .encode_image(image)
        .unwrap();
    bytes
}

#[test]
fn copies_are_found_however_they_are_encoded() {
    let folder = Folder::new();
    let picture = blocks(96, 64, 1);
    folder.write("1.png", &png(96, 64, 1));
    folder.write("other.png", &png(96, 64, 2));
    let mut bytes = std::io::Cursor::new(Vec::new());
    picture
        .write_to(&mut bytes, image::ImageFormat::Bmp)
        .unwrap();
    folder.write("same.bmp", bytes.get_ref());
    folder.write("good.jpg", &jpeg(&picture, 90));
    folder.write("poor.jpg", &jpeg(&picture, 40));
    let half = image::imageops::resize(&picture, 48, 32, image::imageops::FilterType::Triangle);
    folder.write("half.jpg", &jpeg(&half, 80));
    let double = image::imageops::resize(&picture, 192, 128, image::imageops::FilterType::Triangle);
    folder.write("double.jpg", &jpeg(&double, 80));
    let csv = "image,caption,split\n1.png,a,train\nother.png,b,train\nsame.bmp,c,train\ngood.jpg,d,train\n\
               poor.jpg,e,val\nhalf.jpg,f,test\ndouble.jpg,g,train\nother.png,h,test\n";
    let mut config = folder.config(csv.as_bytes());
    config.data.validation = Validation::default();
    let report = checked(&config);
    let of = |kind: &str| -> Vec<u32> {
        let found = found(&report).into_iter();
        found
            .filter(|(name, _)| name == kind)
            .flat_map(|(_, rows)| rows)
            .collect()
    };
    assert_eq!(of("duplicate"), [4]);
    assert_eq!(of("near_duplicate"), [5, 8]);
    assert_eq!(of("leak"), [9]);
    assert_eq!(of("near_leak"), [6, 7]);
    assert_eq!(report.sides, [5, 1, 2]);
    // A training copy of a test picture goes; near copies stay by default.
    let gone = |duplicates: Duplicates| -> Vec<u32> {
        let cleaned = cleaned(&config, duplicates);
        let gone = cleaned
            .filtered
            .gone
            .iter()
            .flat_map(|gone| gone.rows.clone());
        let mut gone: Vec<u32> = gone.collect();
        gone.sort_unstable();
        gone
    };
    assert_eq!(gone(Duplicates::KeepFirst), [3, 4]);
    assert_eq!(gone(Duplicates::KeepFirstNear), [2, 3, 4, 5, 6, 8]);
    assert!(gone(Duplicates::Keep).is_empty());
}

#[test]
fn the_same_picture_under_two_labels_is_left_out_unless_one_is_chosen() {
    let folder = Folder::new();
    for (name, number) in [
        ("1.png", 1),
        ("again.png", 1),
        ("2.png", 2),
        ("3.png", 3),
        ("4.png", 4),
    ] {
        folder.write(name, &png(40, 40, number));
    }
    let csv = "image,label\n1.png,cat\n2.png,dog\nagain.png,dog\n3.png,cat\n4.png,dog\n";
    let mut config = folder.config(csv.as_bytes());
    config.captions = crate::samples::Captions::None;
    config.data.label = Some("label".into());
    config.min_per_label = 1;
    let report = checked(&config);
    assert_eq!(found(&report), [("two_labels".to_owned(), vec![2, 4])]);
    let examples = report.findings[0].examples.iter();
    let details: Vec<_> = examples.map(|one| one.detail.as_deref()).collect();
    assert_eq!(
        details,
        [Some("`cat` as row 4 `dog`"), Some("`dog` as row 2 `cat`")]
    );
    let rows = |conflicts: Conflicts| {
        let copies = Copies {
            conflicts,
            ..Copies::default()
        };
        let cleaned = done(
            watched(usize::MAX, |watch| {
                clean(&config, copies, Existing::Replace, watch)
            })
            .0,
        );
        fs::read_to_string(cleaned.filtered.path).unwrap()
    };
    assert_eq!(
        rows(Conflicts::LeaveOut),
        "image,label\n2.png,dog\n3.png,cat\n4.png,dog\n"
    );
    assert_eq!(
        rows(Conflicts::KeepFirst),
        "image,label\n1.png,cat\n2.png,dog\n3.png,cat\n4.png,dog\n"
    );
    assert_eq!(rows(Conflicts::Keep), csv);
}

#[test]
fn a_split_that_is_not_understood_is_a_finding() {
    let folder = Folder::new();
    for number in [1, 2, 3] {
        folder.write(&format!("{number}.png"), &png(40, 40, number));
    }
    let csv = "image,label,Split\n1.png,cat,0\n2.png,dog,1\n3.png,dog,2\n";
    let mut config = folder.config(csv.as_bytes());
    config.captions = crate::samples::Captions::None;
    config.data.label = Some("label".into());
    config.min_per_label = 1;
    let report = checked(&config);
    assert_eq!(
        found(&report),
        [("split_not_understood".to_owned(), vec![2, 3, 4])]
    );
    let detail = report.findings[0].examples[0].detail.as_deref().unwrap();
    assert!(
        detail.contains("`--set 'data.validation={column: Split, value: 1, test: 2}'`"),
        "{detail}"
    );
    assert_eq!(report.findings[0].examples.len(), 1);
}
