//! Tests malicious databases.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::fixtures::hostile::peak_bytes;
use crate::fixtures::{Folder, Scenario, nsys};
use rusqlite::Connection;
use sidestream_diagnose::{Limits, Trace, read};

const MOST_BYTES: u64 = 32 << 20;

fn file(path: &Path) -> Result<Trace, String> {
    let (result, peak) = peak_bytes(|| read(path, &Limits::default(), &mut |_, _| {}));
    assert!(peak <= MOST_BYTES, "{peak} bytes");
    result.map_err(|error| error.to_string())
}

/// Returns a valid export, changed by some SQL.
fn changed(folder: &Folder, sql: &str) -> PathBuf {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    let path = folder.file("changed.sqlite");
    let good = GOOD.get_or_init(|| {
        let good = folder.file("good.sqlite");
        let scenario = Scenario::training(4);
        nsys::write(&scenario, nsys::Schema::V3_20, nsys::Options::SHORT, &good);
        std::fs::read(&good).expect("the file was written")
    });
    std::fs::write(&path, good).expect("a temporary file can be written");
    let connection = Connection::open(&path).expect("the file was written");
    connection
        .execute_batch(&format!("PRAGMA synchronous = OFF; {sql}"))
        .expect("the change is legal");
    path
}

#[track_caller]
fn check(folder: &Folder, sql: &str, work: usize, warnings: &[&str]) {
    let trace = match file(&changed(folder, sql)) {
        Ok(trace) => trace,
        Err(error) => panic!("{error}"),
    };
    let codes: Vec<&str> = trace.warnings.iter().map(|w| w.code).collect();
    assert_eq!((trace.work.len(), &codes[..]), (work, warnings), "{sql}");
}

#[track_caller]
fn refused(folder: &Folder, sql: &str, says: &str) {
    match file(&changed(folder, sql)) {
        Ok(trace) => panic!("{} rows were read", trace.work.len()),
        Err(error) => assert!(error.contains(says), "{error}"),
    }
}

/// The number of operations of the run in the file, and of its kernels.
const WORK: usize = 40;
const KERNELS: usize = 20;

#[test]
fn rows_of_wrong_types_are_left_out_with_a_warning() {
    let folder = Folder::new("database-types");
    check(&folder, "", WORK, &[]);
    for value in [
        "'soon'",
        "1.5",
        "NULL",
        "x'00ff'",
        "9223372036854775807",
        "-9223372036854775808",
        "zeroblob(100000)",
    ] {
        let kernel = "CUPTI_ACTIVITY_KIND_KERNEL";
        for column in ["start", "\"end\""] {
            let sql = format!("UPDATE {kernel} SET {column} = {value} WHERE rowid = 3");
            check(&folder, &sql, WORK - 1, &["UNUSABLE_ROWS"]);
        }
        // The number of a device, or of a stream, may be any integer.
        let is_number = value.starts_with(['9', '-']);
        let sql = format!("UPDATE {kernel} SET streamId = {value} WHERE rowid = 3");
        if is_number {
            check(&folder, &sql, WORK, &[])
        } else {
            check(&folder, &sql, WORK - 1, &["UNUSABLE_ROWS"])
        }
        // A row without a value in one of these columns says less, but it still counts.
        for column in [
            "contextId",
            "correlationId",
            "globalPid",
            "gridX",
            "graphNodeId",
        ] {
            let sql = format!("UPDATE {kernel} SET {column} = {value} WHERE rowid = 3");
            check(&folder, &sql, WORK, &[]);
        }
    }
}

#[test]
fn times_that_run_backwards_or_are_missing_are_left_out() {
    let folder = Folder::new("database-times");
    let kernel = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET";
    let sql = format!("{kernel} \"end\" = start - 1 WHERE rowid < 4");
    check(&folder, &sql, WORK - 3, &["UNUSABLE_ROWS"]);
    let sql = format!("{kernel} \"end\" = 0, start = 0 WHERE rowid < 4");
    check(&folder, &sql, WORK - 3, &["UNUSABLE_ROWS"]);
    let sql = format!("{kernel} \"end\" = start WHERE rowid < 4");
    check(&folder, &sql, WORK, &[]);
}

#[test]
fn tables_and_columns_may_be_missing() {
    let folder = Folder::new("database-missing");
    for table in [
        "StringIds",
        "TARGET_INFO_GPU",
        "TARGET_INFO_CUDA_STREAM",
        "ThreadNames",
        "META_DATA_CAPTURE",
        "META_DATA_EXPORT",
        "NVTX_EVENTS",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "ENUM_CUDA_MEM_KIND",
        "ENUM_CUDA_MEMCPY_OPER",
    ] {
        let warnings: &[&str] = match table {
            "StringIds" => &["MISSING_NAMES"],
            _ => &[],
        };
        check(&folder, &format!("DROP TABLE {table}"), WORK, warnings);
    }
    check(
        &folder,
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        WORK - KERNELS,
        &[],
    );
    let drop =
        |column: &str| format!("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}");
    for column in [
        "contextId",
        "globalPid",
        "demangledName",
        "correlationId",
        "gridX",
    ] {
        check(&folder, &drop(column), WORK, &[]);
    }
    for column in ["start", "\"end\"", "streamId"] {
        check(&folder, &drop(column), WORK - KERNELS, &["UNUSABLE_ROWS"]);
    }
    let nothing = "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY; \
                   DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET";
    refused(
        &folder,
        nothing,
        "has 20 kernel launches and 16 calls that copy and no records of kernels",
    );
}

#[test]
fn databases_of_others_are_refused() {
    let folder = Folder::new("database-others");
    for (number, sql) in [
        "CREATE TABLE t (a)",
        "CREATE TABLE StringIds (id, value)",
        "",
    ]
    .iter()
    .enumerate()
    {
        let path = folder.file(&format!("{number}.sqlite"));
        let connection = Connection::open(&path).expect("a database can be made");
        let sql = format!("PRAGMA user_version = 3; {sql}");
        connection.execute_batch(&sql).expect("the table is new");
        drop(connection);
        let error = file(&path).err().unwrap_or_default();
        assert!(error.contains("not an export of Nsight Systems"), "{error}");
    }
}

#[test]
fn code_in_a_database_does_not_run() {
    let folder = Folder::new("database-code");
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
    // An endless view in place of a table.
    let view = format!(
        "DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET; \
         CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS {endless} SELECT i AS start, i AS \"end\", \
         0 AS deviceId, i AS streamId FROM n"
    );
    check(&folder, &view, WORK - 4, &["NOT_A_TABLE"]);
    // A column that is computed.
    let computed = "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO begun; \
                    ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN start \
                    GENERATED ALWAYS AS (length(hex(zeroblob(100000000)))) VIRTUAL";
    check(&folder, computed, WORK - KERNELS, &["UNUSABLE_ROWS"]);
    // A table that a module generates.
    let module = "DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET; \
                  CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_MEMSET USING fts5(start, \"end\")";
    check(&folder, module, WORK - 4, &["NOT_A_TABLE"]);
}

#[test]
fn names_that_are_too_long_are_left_out() {
    let folder = Folder::new("database-long");
    let sql = "UPDATE StringIds SET value = printf('%.*c', 100000, 'x') WHERE value LIKE 'sgemm%'";
    check(&folder, sql, WORK, &["MISSING_NAMES"]);
    let sql = "UPDATE StringIds SET value = zeroblob(5000000) WHERE value LIKE 'sgemm%'";
    check(&folder, sql, WORK, &["MISSING_NAMES"]);
}

#[test]
fn many_tables_do_not_fill_memory() {
    let folder = Folder::new("database-tables");
    let path = changed(&folder, "");
    let connection = Connection::open(&path).expect("the file was written");
    // Rows of the schema, since SQLite searches the whole schema for each table that it creates: together they share one page.
    let sql = "CREATE TABLE t0 (a, b, c, d, e, f);
        PRAGMA writable_schema = ON;
        WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 11999)
        INSERT INTO sqlite_schema SELECT 'table', 't' || n, 't' || n, rootpage,
            'CREATE TABLE t' || n || ' (a, b, c, d, e, f)' FROM numbers, sqlite_schema WHERE name = 't0';";
    connection.execute_batch(sql).expect("the tables are new");
    drop(connection);
    let error = file(&path).err().unwrap_or_default();
    assert!(error.contains("too many schema objects"), "{error}");
}

/// A tree of pages in which every pointer of a page leads to one page below: twelve pages have more rows than can ever be read.
#[test]
fn a_tree_that_leads_to_the_same_rows_forever_ends() {
    let folder = Folder::new("database-tree");
    let path = changed(&folder, "");
    let connection = Connection::open(&path).expect("the file was written");
    let root: usize = connection
        .query_row(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'CUPTI_ACTIVITY_KIND_MEMSET'",
            [],
            |row| row.get::<_, i64>(0),
        )
        .expect("the table is there") as usize;
    drop(connection);
    let mut bytes = std::fs::read(&path).expect("the file was written");
    let page_bytes = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    let at = (root - 1) * page_bytes;
    assert_eq!(bytes[at], 0x0d, "the table is one page");

    // The rows go to the end, and eleven pages of pointers before them.
    let mut below = bytes.len() / page_bytes + 1;
    let rows = bytes[at..at + page_bytes].to_vec();
    bytes.extend_from_slice(&rows);
    for _ in 0..10 {
        let page = pointers(page_bytes, below);
        below = bytes.len() / page_bytes + 1;
        bytes.extend_from_slice(&page);
    }
    let page = pointers(page_bytes, below);
    bytes[at..at + page_bytes].copy_from_slice(&page);
    let pages = (bytes.len() / page_bytes) as u32;
    bytes[28..32].copy_from_slice(&pages.to_be_bytes());
    std::fs::write(&path, &bytes).expect("the file can be written");

    let (result, peak) = peak_bytes(|| read(&path, &Limits::default(), &mut |_, _| {}));
    let trace = match result {
        Ok(trace) => trace,
        Err(error) => panic!("{error}"),
    };
    let codes: Vec<&str> = trace.warnings.iter().map(|w| w.code).collect();
    assert_eq!(codes, ["DAMAGED"]);
    assert!(trace.work.len() <= bytes.len() / 7 + WORK + 1);
    assert!(peak < 64 * bytes.len() as u64, "{peak}");
}

/// Returns an inner page of a table with fifty cells, all of which lead to `below`.
fn pointers(page_bytes: usize, below: usize) -> Vec<u8> {
    const CELLS: usize = 50;
    let mut page = vec![0; page_bytes];
    let first = page_bytes - CELLS * 5;
    page[0] = 0x05;
    page[3..5].copy_from_slice(&(CELLS as u16).to_be_bytes());
    page[5..7].copy_from_slice(&(first as u16).to_be_bytes());
    page[8..12].copy_from_slice(&(below as u32).to_be_bytes());
    for cell in 0..CELLS {
        let at = first + cell * 5;
        page[12 + cell * 2..14 + cell * 2].copy_from_slice(&(at as u16).to_be_bytes());
        page[at..at + 4].copy_from_slice(&(below as u32).to_be_bytes());
        page[at + 4] = cell as u8 + 1;
    }
    page
}
