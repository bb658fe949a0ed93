//! Opens a database from an untrusted source, for reading only.
//!
//! SQLite checks much, but it trusts a file in three ways that are not safe here: the schema may hold code (views, triggers,
//! virtual tables, generated columns), a value may be as large as memory, and a damaged tree of pages may lead to the same rows
//! repeatedly. So only plain columns of plain tables are read, values have a size limit, and a table is read for no more rows
//! than fit into the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Statement};

use super::super::error::Problem;

/// The first bytes of every database.
pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The longest string that is read. Longer ones are treated as absent: logs of programs are in the same table as names.
const LONGEST_TEXT_BYTES: u32 = 64 << 10;
/// The largest value or row that SQLite may build at all.
const LARGEST_VALUE_BYTES: i32 = 1 << 20;
/// The longest statement, and so the longest definition of a table.
const LONGEST_SQL_BYTES: i32 = 256 << 10;
/// Exports have about a hundred tables.
const MOST_TABLES: usize = 10_000;
/// The minimum space of a row with two columns in a page: the cell's pointer, its two sizes, the header.
const LEAST_ROW_BYTES: u64 = 7;

/// An open database and the columns of its tables.
pub struct Database {
    connection: Connection,
    /// The plain columns of the tables that were asked for by [`Database::open`].
    tables: HashMap<String, Table>,
    /// Names that were asked for and belong to something other than a plain table.
    not_plain: Vec<String>,
    size_bytes: u64,
}

/// The columns of a table.
#[derive(Clone, Debug, Default)]
struct Table {
    columns: Vec<String>,
    /// The column that is SQLite's own row key, by which a row is found directly.
    key: Option<String>,
}

/// A column to read.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    name: &'static str,
    is_text: bool,
}

/// Returns a column of integers.
pub const fn integer(name: &'static str) -> Column {
    Column {
        name,
        is_text: false,
    }
}

/// Returns a column of text.
pub const fn text(name: &'static str) -> Column {
    Column {
        name,
        is_text: true,
    }
}

/// One row. A column that the table lacks, and a value of another type, are `None`.
pub struct Row<'a, 's> {
    row: &'a rusqlite::Row<'s>,
}

impl Row<'_, '_> {
    /// Returns an integer; `at` is the index in the requested columns.
    pub fn integer(&self, at: usize) -> Option<i64> {
        match self.row.get_ref(at) {
            Ok(ValueRef::Integer(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns a string; `at` is the index in the requested columns.
    pub fn text(&self, at: usize) -> Option<Cow<'_, str>> {
        match self.row.get_ref(at) {
            Ok(ValueRef::Text(bytes)) => Some(String::from_utf8_lossy(bytes)),
            _ => None,
        }
    }
}

/// The result of reading a table.
#[derive(Debug)]
pub struct Scan<B> {
    /// The rows that were read.
    pub rows: u64,
    /// Why reading ended before the end of the table.
    pub damage: Option<String>,
    /// The value with which the callback stopped.
    pub stopped: Option<B>,
}

impl Database {
    /// Opens a file and looks up tables of these names.
    ///
    /// # Errors
    /// The file is not a database, or its list of tables cannot be read.
    pub fn open(path: &Path, wanted: &[&str]) -> Result<Database, Problem> {
        let mut file = File::open(path).map_err(Problem::Io)?;
        let size_bytes = file.metadata().map_err(Problem::Io)?.len();
        let mut magic = Vec::new();
        let first = Read::by_ref(&mut file).take(MAGIC.len() as u64);
        { first }.read_to_end(&mut magic).map_err(Problem::Io)?;
        if magic.is_empty() {
            return Err(Problem::Empty);
        }
        if magic != MAGIC {
            return Err(Problem::NotATrace);
        }
        let connection = connect(path).map_err(unreadable)?;
        let mut database = Database {
            connection,
            tables: HashMap::new(),
            not_plain: Vec::new(),
            size_bytes,
        };
        database.find_tables(wanted)?;
        Ok(database)
    }

    /// Returns whether the database has none of these tables.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Returns whether there is a table of this name.
    pub fn has(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// Returns whether a table has a column of this name.
    pub fn has_column(&self, table: &str, column: &str) -> bool {
        let table = self.tables.get(table);
        table.is_some_and(|table| table.columns.iter().any(|c| c == column))
    }

    /// Returns the size of the file.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the approximate number of rows of a table: its largest row number.
    pub fn about_rows(&self, table: &str) -> u64 {
        if !self.has(table) {
            return 0;
        }
        let sql = format!("SELECT max(rowid) FROM \"{table}\"");
        let most = self
            .connection
            .query_row(&sql, [], |row| row.get::<_, i64>(0));
        u64::try_from(most.unwrap_or(0))
            .unwrap_or(0)
            .min(self.most_rows())
    }

    /// Reads a table from its first row to its last. A missing table has no rows.
    pub fn rows<B>(
        &self,
        table: &str,
        columns: &[Column],
        mut each: impl FnMut(&Row) -> ControlFlow<B>,
    ) -> Scan<B> {
        let mut scan = Scan {
            rows: 0,
            damage: None,
            stopped: None,
        };
        let Some(known) = self.tables.get(table) else {
            return scan;
        };
        let sql = format!(
            "SELECT {} FROM \"{table}\" NOT INDEXED",
            list(columns, known)
        );
        if let Err(error) = self.walk(&sql, &mut scan, &mut each) {
            scan.damage = Some(plain(&error));
        }
        scan
    }

    fn walk<B>(
        &self,
        sql: &str,
        scan: &mut Scan<B>,
        each: &mut impl FnMut(&Row) -> ControlFlow<B>,
    ) -> rusqlite::Result<()> {
        let mut statement: Statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if scan.rows >= self.most_rows() {
                scan.damage = Some("it has more rows than the file can hold".into());
                break;
            }
            scan.rows += 1;
            if let ControlFlow::Break(value) = each(&Row { row }) {
                scan.stopped = Some(value);
                break;
            }
        }
        Ok(())
    }

    /// Prepares a statement that finds a string by its number directly, if the number is the table's key.
    pub fn texts_by_number(
        &self,
        table: &str,
        number: &str,
        text: &str,
    ) -> Option<TextsByNumber<'_>> {
        let known = self.tables.get(table)?;
        if known.key.as_deref() != Some(number) || !self.has_column(table, text) {
            return None;
        }
        let text = text_of(text);
        let sql = format!("SELECT {text} FROM \"{table}\" WHERE \"{number}\" = ?1");
        let statement = self.connection.prepare(&sql).ok()?;
        Some(TextsByNumber { statement })
    }

    /// Returns the maximum number of rows that a table can have.
    fn most_rows(&self) -> u64 {
        self.size_bytes / LEAST_ROW_BYTES + 1
    }

    fn find_tables(&mut self, wanted: &[&str]) -> Result<(), Problem> {
        let names = self.table_names().map_err(unreadable)?;
        self.not_plain = self.others(wanted, &names);
        for name in wanted
            .iter()
            .filter(|name| names.iter().any(|n| n == *name))
        {
            // A table with an invalid definition is treated as missing.
            if let Ok(table) = self.columns(name) {
                self.tables.insert((*name).to_owned(), table);
            }
        }
        Ok(())
    }

    /// Returns those of the names that belong to something other than a plain table.
    fn others(&self, wanted: &[&str], plain: &[String]) -> Vec<String> {
        let is_one = |name: &str| {
            let sql = "SELECT 1 FROM sqlite_schema WHERE name = ?1 LIMIT 1";
            let found = self.connection.query_row(sql, [name], |_| Ok(()));
            found.is_ok() && !plain.iter().any(|n| n == name)
        };
        let names = wanted.iter().filter(|name| is_one(name));
        names.map(|name| (*name).to_owned()).collect()
    }

    /// Returns the requested names that belong to something other than a plain table.
    pub fn not_plain(&self) -> &[String] {
        &self.not_plain
    }

    /// Returns the names of plain tables. Views and virtual tables contain code from the author of the file.
    fn table_names(&self) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' \
                   AND sql LIKE 'CREATE TABLE%' LIMIT ?1";
        let mut statement = self.connection.prepare(sql)?;
        let names = statement.query_map([MOST_TABLES as i64], |row| row.get(0))?;
        // A name that is not text cannot be one of those wanted.
        let names = names.filter(|name| {
            !matches!(
                name,
                Err(rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::Utf8Error(..))
            )
        });
        names.collect()
    }

    fn columns(&self, table: &str) -> rusqlite::Result<Table> {
        let sql = format!("PRAGMA table_xinfo(\"{table}\")");
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        let mut found = Table::default();
        let mut keys = 0;
        while let Some(row) = rows.next()? {
            // Generated columns contain code as well.
            if row.get::<_, i64>("hidden")? != 0 {
                continue;
            }
            let name: String = row.get("name")?;
            if row.get::<_, i64>("pk")? != 0 {
                keys += 1;
                let kind: String = row.get("type")?;
                found.key = kind.eq_ignore_ascii_case("INTEGER").then(|| name.clone());
            }
            found.columns.push(name);
        }
        if keys != 1 {
            found.key = None;
        }
        Ok(found)
    }
}

/// Strings of a table, found by their number.
pub struct TextsByNumber<'a> {
    statement: Statement<'a>,
}

impl TextsByNumber<'_> {
    /// Passes the string with this number to `use_it`, if there is one.
    pub fn find<R>(&mut self, number: i64, use_it: impl FnOnce(&str) -> R) -> Option<R> {
        let mut rows = self.statement.query([number]).ok()?;
        let row = rows.next().ok()??;
        Row { row }.text(0).map(|text| use_it(&text))
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(address(path), flags)?;
    for (setting, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_DQS_DML, false),
    ] {
        connection.set_db_config(setting, on)?;
    }
    for (limit, value) in [
        (Limit::SQLITE_LIMIT_LENGTH, LARGEST_VALUE_BYTES),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, LONGEST_SQL_BYTES),
        (Limit::SQLITE_LIMIT_SCHEMA, MOST_TABLES as i32),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, value)?;
    }
    connection.execute_batch("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;")?;
    Ok(connection)
}

/// Returns the URI of the file for SQLite, marked as immutable, so that it looks for no journal and takes no locks: traces may
/// be in read-only folders.
fn address(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    let mut address = String::from("file:");
    if path.is_absolute() {
        // An empty host name.
        address.push_str("//");
        if !bytes.starts_with(b"/") {
            address.push('/');
        }
    }
    for &byte in bytes {
        match byte {
            b'\\' if cfg!(windows) => address.push('/'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                address.push(byte as char);
            }
            b':' if cfg!(windows) => address.push(':'),
            other => address.push_str(&format!("%{other:02X}")),
        }
    }
    address.push_str("?immutable=1&mode=ro");
    address
}

fn list(columns: &[Column], table: &Table) -> String {
    let one = |column: &Column| {
        let is_there = table.columns.iter().any(|name| name == column.name);
        match (is_there, column.is_text) {
            (false, _) => "NULL".into(),
            (true, false) => format!("\"{}\"", column.name),
            (true, true) => text_of(column.name),
        }
    };
    columns.iter().map(one).collect::<Vec<String>>().join(", ")
}

/// Returns an expression for a string that is not too long; of a longer one, SQLite reads only the length.
fn text_of(column: &str) -> String {
    format!("iif(octet_length(\"{column}\") <= {LONGEST_TEXT_BYTES}, \"{column}\", NULL)")
}

fn unreadable(error: rusqlite::Error) -> Problem {
    Problem::Database {
        why: format!(
            "the database cannot be read ({}); was it copied whole? `nsys export --type sqlite` \
             makes it again from the report",
            plain(&error)
        ),
    }
}

/// Returns SQLite's message, without the statement and the internal numbers.
fn plain(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(failure, message) => match message {
            Some(message) => message.clone(),
            None => failure.to_string(),
        },
        other => other.to_string(),
    }
}
