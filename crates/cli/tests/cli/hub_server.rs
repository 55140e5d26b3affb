//! A small Hugging Face hub on loopback: lists files, hands them out by range, and sends large ones elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit of every model here.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What a server has, and what it was asked.
#[derive(Default)]
pub struct Shelf {
    /// By revision: files by name.
    pub revisions: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// What `/discussions` answers.
    pub discussions: Value,
    /// The next answer with this file ends after so many bytes.
    pub cut: Option<(String, usize)>,
    /// This file is not what the list says.
    pub damaged: Option<String>,
    /// Requests: path, range, whether there was a token.
    pub asked: Vec<(String, Option<String>, Option<String>)>,
}

/// Two servers: the hub, and where it sends for weights.
pub struct HubServer {
    pub shelf: Arc<Mutex<Shelf>>,
    pub endpoint: String,
}

impl HubServer {
    pub fn start(files: BTreeMap<String, Vec<u8>>) -> HubServer {
        let shelf = Arc::new(Mutex::new(Shelf::default()));
        shelf
            .lock()
            .unwrap()
            .revisions
            .insert("main".to_owned(), files);
        let [hub, storage] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let at = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let (endpoint, elsewhere) = (at(&hub), at(&storage));
        for listener in [hub, storage] {
            let (shelf, elsewhere) = (Arc::clone(&shelf), elsewhere.clone());
            // Ends with the test's process.
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = answer(stream, &shelf, &elsewhere);
                }
            });
        }
        HubServer { shelf, endpoint }
    }

    /// Requests since the last look.
    pub fn asked(&self) -> Vec<(String, Option<String>, Option<String>)> {
        std::mem::take(&mut self.shelf.lock().unwrap().asked)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".bin")
}

fn answer(mut stream: TcpStream, shelf: &Mutex<Shelf>, elsewhere: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let headers: Vec<String> = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect();
    let header = |wanted: &str| {
        headers.iter().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case(wanted).then(|| value.to_owned())
        })
    };
    let mut shelf = shelf.lock().unwrap();
    let range = header("range");
    shelf
        .asked
        .push((path.clone(), range.clone(), header("authorization")));
    if let Some(rest) = path.strip_prefix("/api/models/somebody/clip/revision/") {
        let revision = rest
            .split('?')
            .next()
            .unwrap_or_default()
            .replace("%2F", "/");
        return match shelf.revisions.get(&revision) {
            Some(files) => reply(
                &mut stream,
                "200 OK",
                &[],
                listing(files).to_string().as_bytes(),
            ),
            None => reply(&mut stream, "404 Not Found", &[], b"no such revision"),
        };
    }
    if path == "/api/models/somebody/clip/discussions" {
        let text = shelf.discussions.to_string();
        return reply(&mut stream, "200 OK", &[], text.as_bytes());
    }
    let resolve = format!("/somebody/clip/resolve/{COMMIT}/");
    let name = path
        .strip_prefix(&resolve)
        .or_else(|| path.strip_prefix("/storage/"));
    let file = name.and_then(|name| {
        let mut revisions = shelf.revisions.values();
        revisions.find_map(|files| files.get(name)).cloned()
    });
    let (Some(name), Some(mut file)) = (name, file) else {
        return reply(&mut stream, "404 Not Found", &[], b"nothing here");
    };
    if is_large(name) && path.starts_with(&resolve) {
        let location = format!("Location: {elsewhere}/storage/{name}");
        return reply(&mut stream, "302 Found", &[&location], b"");
    }
    if shelf.damaged.as_deref() == Some(name) {
        file[0] ^= 1;
    }
    let first = range.and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    });
    let first: usize = first.unwrap_or(0);
    let (status, said) = match first {
        0 => ("200 OK", String::new()),
        _ => {
            let (last, all) = (file.len() - 1, file.len());
            (
                "206 Partial Content",
                format!("Content-Range: bytes {first}-{last}/{all}"),
            )
        }
    };
    let cut = shelf.cut.take_if(|(cut, _)| cut == name);
    let body = &file[first..];
    let most = cut.map_or(body.len(), |(_, bytes)| bytes);
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n",
        body.len()
    )?;
    write!(
        stream,
        "Connection: close\r\n{said}{}\r\n",
        if said.is_empty() { "" } else { "\r\n" }
    )?;
    stream.write_all(&body[..most])
}

fn reply(
    stream: &mut TcpStream,
    status: &str,
    headers: &[&str],
    body: &[u8],
) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n",
        body.len()
    )?;
    for header in headers {
        write!(stream, "{header}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    stream.write_all(body)
}

/// As `?blobs=true` says it.
fn listing(files: &BTreeMap<String, Vec<u8>>) -> Value {
    let entries = files.iter().map(|(name, bytes)| {
        let header = format!("blob {}\0", bytes.len());
        let git = hex(&Sha1::new()
            .chain_update(header)
            .chain_update(bytes)
            .finalize());
        let mut entry = json!({"rfilename": name, "size": bytes.len(), "blobId": git});
        if is_large(name) {
            entry["lfs"] = json!({"sha256": hex(&Sha256::digest(bytes)), "size": bytes.len()});
        }
        entry
    });
    json!({"sha": COMMIT, "siblings": entries.collect::<Vec<Value>>()})
}
